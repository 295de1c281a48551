"""A master that refuses a session's secret, or does not answer, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.pipeline.faults import ERROR, JobFailed
from broker.pipeline.spark.session import MasterWatch

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
        assert not watch.look()
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
        found.append(watch.look())
    assert found == [False, True]
