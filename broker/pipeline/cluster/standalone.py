"""A Spark cluster on this machine from the pip package alone: a master and workers, on loopback, with a secret.

PySpark from pip has no start-master.sh; the classes that it would start are there.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from broker.pipeline.cluster.daemons import MARK, end, is_ours, last_words, rss_bytes, spawn, wait_for
from broker.pipeline.cluster.folder import ClusterFolder, ClusterState, Daemon
from broker.pipeline.job import USAGE, JobFailed
from broker.pipeline.spark.java import find_java

__all__ = ["ClusterStatus", "DaemonStatus", "start", "status", "stop", "why_not"]

MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
MASTER_AT: Final = re.compile(r"Starting Spark master at (spark://\S+)")
UI_AT: Final = re.compile(r"MasterWebUI: Bound MasterWebUI to \S+, and started at (http://\S+)")
ELECTED: Final = re.compile(r"I have been elected leader")
REGISTERED: Final = re.compile(r"Successfully registered with master")
DAEMON_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # they only keep books
DAEMON_MEMORY: Final = "512m"


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """One process, and whether it runs."""

    daemon: Daemon
    runs: bool
    rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as it is now."""

    state: ClusterState
    daemons: tuple[DaemonStatus, ...]

    @property
    def whole(self) -> bool:
        """Whether everything that was started runs."""
        return len(self.daemons) == 1 + self.state.workers and all(each.runs for each in self.daemons)

    @property
    def running(self) -> bool:
        """Whether anything runs."""
        return any(each.runs for each in self.daemons)


def start(folder: ClusterFolder, *, host: str, port: int, workers: int, cores: int, memory: str) -> ClusterState:
    """Start a cluster and return when all workers have registered.

    Shapes: port 0 takes a free one, and one that is taken makes Spark take the next; `master` of the state says which.
    Raises: JobFailed (NO_JAVA when no Java will do), and nothing runs then.
    """
    with folder.alone():
        before = status(folder)
        if before is not None and before.running:
            where = before.state.master or folder.path
            raise JobFailed(f"a cluster runs already: {where} (slotmq pipeline cluster stop)")
        return _start(folder, host, port, workers, cores, memory)


def _start(folder: ClusterFolder, host: str, port: int, workers: int, cores: int, memory: str) -> ClusterState:
    home = _spark_home()
    java = find_java()
    if shutil.which("bash") is None:
        raise JobFailed("Spark's launcher is written for bash, and there is none on PATH")
    folder.prepare(host)
    mark = secrets.token_hex(16)
    state = ClusterState(mark, host, workers, cores, memory, int(time.time() * 1000))
    environment = _environment(folder, home, java.home, host, mark)
    launcher = str(home / "bin" / "spark-class")
    try:
        folder.keep(state)
        command = [launcher, MASTER, "--host", host, "--port", str(port), "--webui-port", "0"]
        master = spawn("master", command, folder.logs / "master.log", environment)
        state = state.with_daemon(master)
        folder.keep(state)
        url, ui = wait_for(master, mark, MASTER_AT)[1], wait_for(master, mark, UI_AT)[1]
        wait_for(master, mark, ELECTED)
        state = replace(state, master=url, ui=ui)
        for number in range(1, workers + 1):
            command = [launcher, WORKER, "--host", host, "--port", "0", "--webui-port", "0", "--cores", str(cores)]
            command += ["--memory", memory, "--work-dir", str(folder.work), url]
            log = folder.logs / f"worker-{number}.log"
            state = state.with_daemon(spawn(f"worker {number}", command, log, environment))
            folder.keep(state)
        for daemon in state.daemons[1:]:
            wait_for(daemon, mark, REGISTERED)
    except BaseException as error:
        end(state.daemons, mark)
        folder.forget()
        if isinstance(error, OSError):
            raise JobFailed(f"{error.filename or folder.path}: {error.strerror}") from None
        raise
    return state


def stop(folder: ClusterFolder) -> list[Daemon]:
    """End the processes of the cluster that still run, workers first, and return them. Raises: JobFailed."""
    if folder.state() is None:
        return []
    with folder.alone():
        state = folder.state()
        if state is None:
            return []
        master, workers = state.daemons[:1], state.daemons[1:]
        ended = [*end(workers, state.mark), *end(master, state.mark)]
        left = [daemon for daemon in state.daemons if is_ours(daemon, state.mark)]
        if left:
            raise JobFailed(f"process {left[0].pid} ({left[0].role}) does not end")
        folder.forget()
    return ended


def status(folder: ClusterFolder) -> ClusterStatus | None:
    """Return how the cluster is, None when none was started. Raises: JobFailed."""
    state = folder.state()
    if state is None:
        return None
    found = []
    for daemon in state.daemons:
        runs = is_ours(daemon, state.mark)
        found.append(DaemonStatus(daemon, runs, rss_bytes(daemon) if runs else None))
    return ClusterStatus(state, tuple(found))


def why_not(daemon: Daemon) -> str:
    """Return what a process that does not run said last."""
    return last_words(Path(daemon.log))


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JobFailed('Spark is not installed: pip install "slotmq[spark]"', USAGE)
    return Path(spec.origin).parent


def _environment(folder: ClusterFolder, home: Path, java_home: Path, host: str, mark: str) -> dict[str, str]:
    """Return the daemons' variables: those of this process, but for what would change Spark behind our back."""
    kept: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "_SPARK_"))
    }
    return {
        **kept,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder.conf),
        "SPARK_LOCAL_IP": host,  # the web pages listen there too
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": f"{DAEMON_JAVA} {MARK}{mark}",
    }
