"""The settings of a Spark session, without a session, and the watch of its master."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from broker.pipeline.faults import ERROR, USAGE, JobFailed
from broker.pipeline.spark import session as spark_session
from broker.pipeline.spark.session import MasterWatch, local_cores, settings


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[*]", 8), ("local[3]", 3), ("local[2,4]", 2), ("local[*,4]", 8)]
)
def test_the_cores_of_a_local_master(master: str, cores: int) -> None:
    """The number of cores is that of the master, or the machine's."""
    assert local_cores(master, 8) == cores


def test_a_local_session_stays_on_loopback() -> None:
    """A local driver listens on loopback only."""
    made = settings("local[3]", "app", {}, 8)
    assert made["spark.driver.host"] == made["spark.driver.bindAddress"] == "127.0.0.1"
    assert made["spark.sql.shuffle.partitions"] == "6"
    assert made["spark.ui.enabled"] == "false"


def test_a_cluster_session_names_no_loopback() -> None:
    """Remote executors must reach the driver, and the cluster decides about shuffle partitions."""
    made = settings("spark://host:7077", "app", {}, 8)
    assert "spark.driver.host" not in made
    assert "spark.sql.shuffle.partitions" not in made


def test_the_users_settings_win() -> None:
    """The user's settings override all settings of the pipeline."""
    made = settings("local", "app", {"spark.ui.enabled": "true", "spark.master": "local[9]"}, 8)
    assert made["spark.ui.enabled"] == "true"
    assert made["spark.master"] == "local[9]"


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables for Spark's start are removed or restored afterwards, also after a failure."""
    monkeypatch.setenv("SLOTMQ_TEST_KEPT", "before")
    monkeypatch.delenv("SLOTMQ_TEST_NEW", raising=False)
    seen = []

    def start() -> None:
        with spark_session.environment({"SLOTMQ_TEST_KEPT": "now", "SLOTMQ_TEST_NEW": "now"}):
            seen.append((os.environ["SLOTMQ_TEST_KEPT"], os.environ["SLOTMQ_TEST_NEW"]))
            raise ValueError("start")

    with pytest.raises(ValueError, match="start"):
        start()
    assert seen == [("now", "now")]
    assert os.environ["SLOTMQ_TEST_KEPT"] == "before"
    assert "SLOTMQ_TEST_NEW" not in os.environ


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session without PySpark is wrong usage, and the text is the remedy."""
    monkeypatch.setattr(spark_session, "find_spec", lambda _: None)
    with pytest.raises(JobFailed, match=r'pip install "\.\[spark\]"') as raised:
        spark_session.session()
    assert raised.value.code == USAGE


MASTER = "spark://host:7077"
START = "26/11/29 11:29:37 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform\n"
DEADLINE_S = 10


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("ERROR TransportClientFactory: Exception while bootstrapping client after 286 ms", "different secrets:"),
        ("IllegalStateException: Expected SaslMessage, received something else (maybe your", "different secrets:"),
        (
            "StandaloneSchedulerBackend: Reason: All masters are unresponsive! Giving up.",
            "no Spark master answers",
        ),
    ],
)
def test_what_keeps_a_session_from_its_master_ends_the_jvm_with_one_line(tmp_path: Path, said: str, line: str) -> None:
    """The JVM is ended when its output has the reason; the output of an earlier session is none."""
    log, ended = tmp_path / "log", threading.Event()
    log.write_text(f"{said}\n")
    with MasterWatch(log, MASTER, ended.set) as watch:
        assert not watch.find_reason()
    assert not ended.is_set()

    def wait() -> None:
        with MasterWatch(log, MASTER, ended.set):
            with log.open("a") as stream:
                stream.write(START + said)
            assert ended.wait(DEADLINE_S)
            raise ConnectionError("the JVM has ended")

    with pytest.raises(JobFailed, match=line) as failure:
        wait()
    assert (failure.value.code, MASTER in str(failure.value)) == (ERROR, True)


def test_a_reason_that_is_half_written_at_one_look_is_found_at_the_next(tmp_path: Path) -> None:
    """Each look begins a little before the end of the one before."""
    log = tmp_path / "log"
    log.touch()
    watch = MasterWatch(log, MASTER, lambda: None)
    found = []
    for part in (START * 10 + "All masters are unr", "esponsive! Giving up."):
        with log.open("a") as stream:
            stream.write(part)
        found.append(watch.find_reason())
    assert found == [False, True]
