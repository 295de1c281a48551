"""Measures commands as a shell runs them: with their own Spark, on a Spark server, and beside published messages.

Each contestant is a process. Its CPU time includes that of all processes that it started, and of the Spark server that
it used.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.brokers import PROJECT, Broker, slotmq
from bench.perf_run import perf
from bench.pipeline.ground import Ground
from bench.run import Figures
from bench.service import Service
from bench.stage import WrongResult
from broker.cli.control_client import ask
from broker.perf.machine import ProcessTree
from broker.perf.peer import PeerConnection
from broker.perf.wire import PUBLISH_CHANNEL

QUERY_ROWS: Final = 1_000_000
ARCHIVE_ROWS: Final = 300_000
SQL: Final = "SELECT exchange, count(*), avg(length(body)) FROM messages GROUP BY exchange"
SPARK_START: Final = "Spark's own start"
COLD: Final = "cold"
WARM: Final = "warm"
QUIET: Final = "a tap, nobody reads it"
FOLLOWED: Final = "an archive follows it"
_START: Final = """
import os
from pyspark.sql import SparkSession
from broker.pipeline.spark.java import find_java
os.environ["JAVA_HOME"] = str(find_java().home)
SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate().range(1).count()
"""
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER of Linux
_LEFT_S: Final = 0.2  # a process that runs longer is a server
_EXCHANGE: Final = "bench"
_TAP: Final = "latency"
_LIMIT_S: Final = 300.0
_FOLLOW_LIMIT_S: Final = 120.0
_SETTLE_S: Final = 2.0


def commands(ground: Ground) -> None:
    """Measure a query over 10^6 rows and an archive of 300,000 messages, cold and warm, beside Spark's own start."""
    shell = _Shell(ground.folder)
    queried, taken = ground.new_store("queried"), ground.new_store("taken")
    for store, rows in (queried, QUERY_ROWS), (taken, ARCHIVE_ROWS):
        store.add(rows)
        store.close()
    lake = ground.folder / "queried-lake"
    ground.archive(queried.path, lake, QUERY_ROWS)
    query = ("query", "--lake", str(lake), "--quiet", SQL)
    archive = ("archive", "--path", str(taken.path), "--no-seal", "--quiet", "--json", "--lake")
    works: dict[str, Callable[[], Figures]] = {
        SPARK_START: lambda: shell.run("-c", _START),
        f"{COLD} query": lambda: shell.slotmq(*query, "--cold"),
        f"{WARM} query": lambda: shell.slotmq(*query, warm=True),
        f"{COLD} archive": lambda: shell.slotmq(*archive, str(ground.stage.new_folder()), "--cold"),
        f"{WARM} archive": lambda: shell.slotmq(*archive, str(ground.stage.new_folder()), warm=True),
    }

    shell.slotmq("server", "start", "--quiet")
    try:
        ground.in_turn("commands", works, ground.plan.command_rounds)
    finally:
        shell.slotmq("server", "stop", "--quiet")


class _Shell:
    """Runs commands with a cache folder of their own, and therefore with a Spark server of their own."""

    def __init__(self, folder: Path) -> None:
        cache = folder / "cache"
        cache.mkdir()
        self._state = cache / "slotmq" / "server.json"
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(PROJECT)}

    def slotmq(self, *words: str, warm: bool = False) -> Figures:
        """Run a command of the pipeline, and return its time and CPU time. Raises: WrongResult."""
        server = ProcessTree(json.loads(self._state.read_text())["pid"]) if warm else None
        before_s = server.usage().cpu_s if server else 0.0
        found = self.run("-m", "broker", "pipeline", *words)
        found["cpu_s"] += server.usage().cpu_s - before_s if server else 0.0
        return found

    def run(self, *words: str) -> Figures:
        """Run a Python program, and return its time and the CPU time of its process tree. Raises: WrongResult.

        A process that outlives the program, such as a JVM, becomes a child of this process, which waits for its end.
        """
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        before_s, begun = _children_s(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        wall_s = time.perf_counter() - begun
        if done.returncode:
            raise WrongResult(f"{' '.join(words[:4])}: {done.stderr[-300:]}")
        last = time.monotonic() + _LEFT_S
        while time.monotonic() < last:
            if os.waitpid(-1, os.WNOHANG)[0]:
                last = time.monotonic() + _LEFT_S
            time.sleep(_LEFT_S / 20)
        return {"wall_s": wall_s, "cpu_s": _children_s() - before_s}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def latency(ground: Ground) -> None:
    """Measure single messages through a broker with a tap, in turn without and with an archive that follows it.

    The archive is the command as a user starts it, on the same machine.
    """
    plan = ground.plan
    flags = f"-r {plan.latency_rate} -s {plan.body_bytes} -a --persistent -e {_EXCHANGE} -k bench.latency"
    words = f"{flags} -z {plan.latency_slice_s}s".split()
    with slotmq(ground.folder / "latency") as broker:
        assert broker.folder is not None
        peer = PeerConnection(broker.address, PUBLISH_CHANNEL)
        peer.declare_exchange(_EXCHANGE, durable=True)
        peer.close()
        ask(broker.folder, "tap_add", vhost="/", exchange=_EXCHANGE, pattern="#", name=_TAP, cursors=[_TAP])
        for _ in range(plan.latency_rounds):
            _slice(ground, broker, QUIET, words)
            with _archive(ground, broker.folder):
                _slice(ground, broker, FOLLOWED, words)


def _slice(ground: Ground, broker: Broker, name: str, words: Sequence[str]) -> None:
    times = perf(broker, "latency", *words, limit_s=_LIMIT_S)[0].latency_us
    if times is None:
        raise WrongResult("latency: no message arrived")
    ground.stage.add("latency", {"p50_us": times.p50, "p99_us": times.p99, "max_us": times.max}, name=name)


@contextmanager
def _archive(ground: Ground, data: Path) -> Iterator[None]:
    """Run the archive command, following the tap; all earlier messages are archived when the block starts."""
    command = [sys.executable, "-m", "broker", "pipeline", "archive", "--path", str(data), "--follow", "--quiet"]
    command += ["--lake", str(ground.folder / "latency-lake"), "--tap", _TAP, "--cursor", _TAP, "--every", "1"]
    command += ["--driver-memory", ground.plan.driver_memory]
    log = ground.folder / "latency-archive.log"
    with Service("the archive", command, log, {"PYTHONPATH": str(PROJECT)}) as service:
        service.start()
        if not _follows(data, service):
            raise WrongResult(f"latency: the archive does not follow: {' '.join(service.output().splitlines()[-3:])}")
        time.sleep(_SETTLE_S)
        yield
        if not service.alive:
            raise WrongResult("latency: the archive ended")


def _follows(data: Path, archive: Service) -> bool:
    """Wait until the cursor has passed all earlier messages; return whether it has."""
    wanted = ask(data, "seal", vhost="/", tap=_TAP)["last_seal"]
    deadline = time.monotonic() + _FOLLOW_LIMIT_S
    while time.monotonic() < deadline and archive.alive:
        if any(one["seal"] >= wanted for one in ask(data, "cursors") if one["name"] == _TAP):
            return True
        time.sleep(0.3)
    return False
