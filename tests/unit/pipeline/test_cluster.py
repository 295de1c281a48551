"""A cluster's life without Spark: a shell script stands for its daemons, so this is about who starts and ends whom."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from broker.pipeline.cluster import daemons as cluster_daemons
from broker.pipeline.cluster import standalone as cluster
from broker.pipeline.cluster.daemons import MARK, end, is_ours, rss_bytes, spawn, wait_for
from broker.pipeline.cluster.folder import ClusterFolder, ClusterState, Daemon, cluster_environment
from broker.pipeline.job import JobFailed, Progress
from broker.pipeline.jobs.cluster import ClusterOptions, run_cluster
from broker.pipeline.spark.java import Java
from tests.deadline import wait_until

# What spark-class does for us: says what Spark's daemons say, and stays, known by the mark among its words.
LAUNCHER = r"""#!/bin/bash
echo "$SPARK_CONF_DIR $SPARK_LOCAL_IP $JAVA_HOME" >> "$SPARK_CONF_DIR/../asked"
echo $$ >> "$SPARK_CONF_DIR/../pids"
case "$1" in
*Master)
  echo "INFO Master: Starting Spark master at spark://127.0.0.1:7177"
  echo "INFO MasterWebUI: Bound MasterWebUI to 127.0.0.1, and started at http://127.0.0.1:8180"
  echo "INFO Master: I have been elected leader! New state: ALIVE" ;;
*Worker)
  if [ -e "$SPARK_CONF_DIR/../no-worker" ]; then echo "java.net.BindException: none left"; exit 1; fi
  echo "INFO Worker: Successfully registered with master ${!#}" ;;
esac
exec {python} -c 'import signal; signal.pause()' "${{SPARK_DAEMON_JAVA_OPTS##* }}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    """Provide a folder for a cluster, and a Spark that is none."""
    launcher = tmp_path / "spark" / "bin" / "spark-class"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(LAUNCHER.replace("{python}", sys.executable).replace("${{", "${").replace("}}", "}"))
    launcher.chmod(0o700)
    monkeypatch.setattr(cluster, "_spark_home", lambda: launcher.parents[1])
    java = Java("PATH", Path("/java"), "21.0.8", Path("/java"))
    monkeypatch.setattr(cluster, "find_java", lambda: java)
    return ClusterFolder(tmp_path / "cluster")


def started(folder: ClusterFolder, workers: int = 2) -> ClusterState:
    """Return a cluster that runs."""
    return cluster.start(folder, host="127.0.0.1", port=0, workers=workers, cores=1, memory="512m")


def test_a_cluster_is_started_looked_at_and_stopped(folder: ClusterFolder) -> None:
    """Its master and its workers run until it is stopped, and then none of them does; the secret goes with them."""
    state = started(folder)
    try:
        assert (state.master, state.ui) == ("spark://127.0.0.1:7177", "http://127.0.0.1:8180")
        assert [daemon.role for daemon in state.daemons] == ["master", "worker 1", "worker 2"]
        found = cluster.status(folder)
        assert found is not None and found.whole
        assert all(each.rss_bytes for each in found.daemons)
        assert folder.state() == state
        with pytest.raises(JobFailed, match="a cluster runs already: spark://127"):
            started(folder)
        asked = (folder.path / "asked").read_text().splitlines()
        assert asked == [f"{folder.conf} 127.0.0.1 /java"] * 3
    finally:
        ended = cluster.stop(folder)
    assert [daemon.role for daemon in ended] == ["worker 1", "worker 2", "master"]
    assert not any(is_ours(daemon, state.mark) for daemon in state.daemons)
    assert cluster.status(folder) is None and cluster.stop(folder) == []
    assert not folder.conf.exists() and folder.logs.exists()


def test_nobody_else_reads_the_secret(folder: ClusterFolder) -> None:
    """It is in one file of the owner's, in a folder of the owner's, and in no command line. Each cluster has one."""
    secrets = set()
    for _ in range(2):
        state = started(folder, workers=1)
        try:
            conf = folder.conf / "spark-defaults.conf"
            lines = dict(line.split() for line in conf.read_text().splitlines())
            assert lines["spark.authenticate"] == "true" and lines["spark.master.rest.enabled"] == "false"
            assert lines["spark.driver.bindAddress"] == "127.0.0.1"
            secret = lines["spark.authenticate.secret"]
            assert re.fullmatch(r"[0-9a-f]{64}", secret)
            secrets.add(secret)
            assert (conf.stat().st_mode & 0o777, folder.path.stat().st_mode & 0o777) == (0o600, 0o700)
            for daemon in state.daemons:
                assert secret not in " ".join(cluster_daemons._command(daemon.pid))
        finally:
            cluster.stop(folder)
    assert len(secrets) == 2


def test_a_start_that_fails_leaves_nothing_running(folder: ClusterFolder) -> None:
    """The worker's last words are told, and the master is ended again."""
    folder.path.mkdir()
    (folder.path / "no-worker").touch()
    with pytest.raises(JobFailed, match=r"the worker 1 ended at once: java.net.BindException: none left"):
        started(folder)
    assert folder.state() is None
    pid = int((folder.path / "pids").read_text().split()[0])
    assert MARK not in " ".join(cluster_daemons._command(pid))


def test_a_worker_that_ended_is_noticed(folder: ClusterFolder) -> None:
    """`status` says so and is 1; `stop` ends the rest."""
    state = started(folder)
    try:
        os.kill(state.daemons[1].pid, signal.SIGKILL)
        wait_until(lambda: not is_ours(state.daemons[1], state.mark), "the worker is gone")
        summary = run_cluster(ClusterOptions("status", folder.path), Progress("cluster", quiet=True))
        assert summary.code == 1
        assert [each["runs"] for each in summary.values["daemons"]] == [True, False, True]
        assert any(line.startswith("worker 1 process") and "has ended" in line for line in summary.lines)
    finally:
        summary = run_cluster(ClusterOptions("stop", folder.path), Progress("cluster", quiet=True))
    assert (summary.code, summary.values) == (0, {"ended": ["worker 2", "master"]})
    assert run_cluster(ClusterOptions("status", folder.path), Progress("cluster", quiet=True)).code == 1


def test_two_do_not_start_or_stop_at_once(folder: ClusterFolder) -> None:
    """The second is told, and changes nothing; the lock ends with whoever had it."""
    with folder.alone():
        with pytest.raises(JobFailed, match="somebody starts or stops the cluster"):
            started(folder)
        folder.keep(ClusterState("0" * 32, "127.0.0.1", 1, 1, "1g", 1))
        with pytest.raises(JobFailed, match="somebody starts or stops the cluster"):
            cluster.stop(folder)
        assert folder.state() is not None
    assert cluster.stop(folder) == [] and folder.state() is None


def test_a_process_that_has_got_the_number_of_ours_is_left_alone(folder: ClusterFolder) -> None:
    """The state names this very test's process, which lives on: identity is the mark, not the number."""
    folder.prepare("127.0.0.1")
    state = ClusterState("0" * 32, "127.0.0.1", 1, 1, "1g", 1, daemons=(Daemon("master", os.getpid(), "log"),))
    folder.keep(state)
    found = cluster.status(folder)
    assert found is not None and not found.running
    assert cluster.stop(folder) == []
    assert folder.state() is None


def test_who_does_not_go_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hears no SIGTERM is ended all the same."""
    monkeypatch.setattr(cluster_daemons, "TERM_MAX_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    daemon = spawn("worker 1", [sys.executable, "-c", deaf, f"{MARK}abc"], tmp_path / "log", os.environ)
    wait_for(daemon, "abc", re.compile("deaf"))
    assert (rss_bytes(daemon) or 0) > 1 << 20
    assert end([daemon], "abc") == [daemon]
    assert not is_ours(daemon, "abc")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="an environment is read from /proc")
def test_a_launcher_that_is_no_daemon_yet_is_ended_too(tmp_path: Path) -> None:
    """A start that is broken off early leaves nothing that would become a daemon later."""
    marked = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": f"-Xmx1g {MARK}abc"}
    daemon = spawn("master", [sys.executable, "-c", "import signal; signal.pause()"], tmp_path / "log", marked)
    assert not is_ours(daemon, "abd")
    assert end([daemon], "abc") == [daemon]
    assert not is_ours(daemon, "abc")


def test_a_driver_of_this_user_gets_the_secret_by_its_file(tmp_path: Path) -> None:
    """For the master of the user's own cluster, unless a configuration is named; for no other master."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert cluster_environment("spark://127.0.0.1:7077", environment) == {}
    folder = ClusterFolder(tmp_path / "slotmq" / "cluster")
    folder.prepare("127.0.0.1")
    folder.keep(ClusterState("ab", "127.0.0.1", 1, 1, "1g", 1, master="spark://127.0.0.1:7077"))
    assert cluster_environment("spark://127.0.0.1:7077", environment) == {"SPARK_CONF_DIR": str(folder.conf)}
    assert cluster_environment("spark://127.0.0.1:7078", environment) == {}
    assert cluster_environment("local[2]", environment) == {}
    named = {**environment, "SPARK_CONF_DIR": "/etc/spark"}
    assert cluster_environment("spark://127.0.0.1:7077", named) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "mark": "a"}'])
def test_a_state_that_cannot_be_read_is_said_so(tmp_path: Path, text: str) -> None:
    """One line that names the file; nothing is started over it."""
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(JobFailed, match=r"state\.json cannot be read"):
        cluster.status(ClusterFolder(tmp_path))


@pytest.mark.parametrize(
    "words",
    [
        ["cluster"],
        ["cluster", "start", "--workers", "0"],
        ["cluster", "start", "--memory", "much"],
        ["cluster", "start", "--port", "70000"],
        ["cluster", "begin"],
    ],
)
def test_wrong_usage_is_told_in_a_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    from broker.cli.main import main

    pytest.importorskip("pyspark")
    with pytest.raises(SystemExit) as caught:
        main(["pipeline", *words])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
