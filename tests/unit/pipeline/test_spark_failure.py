"""Exceptions of Spark as the one line that a user gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.pipeline.faults import ERROR, GAP, USAGE, SourceRefused
from broker.pipeline.spark.log import LINE_MAX, SparkLog, failure_of, reason
from broker.pipeline.spark.server_files import ServerFiles, ServerState

IN_A_TASK = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/somewhere/worker.py", line 9, in read
    x = opened[1]
Traceback: no
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/somewhere/worker.py", line 11, in read
    raise ValueError("boom")
{raised}
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1097)
"""


def test_a_fault_of_the_sources_is_told_alone() -> None:
    """A gap in a worker ends the job with the gap's code and its own line, without a trace."""
    failure = failure_of(RuntimeError(IN_A_TASK.format(raised="broker.pipeline.faults.SlotMissing: slot 3 is gone")))
    assert (str(failure), failure.code) == ("slot 3 is gone", GAP)
    failure = failure_of(RuntimeError(IN_A_TASK.format(raised="broker.pipeline.faults.JobRefused: no such column")))
    assert (str(failure), failure.code) == ("no such column", USAGE)
    failure = failure_of(SourceRefused("no such store"))
    assert (str(failure), failure.code) == ("no such store", ERROR)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (IN_A_TASK.format(raised="ValueError: boom"), "ValueError: boom"),
        (IN_A_TASK.format(raised="some.package.Odd: boom"), "Odd: boom"),
        (IN_A_TASK.format(raised="broker.pipeline.job.JobFailed: slot 7 is gone"), "slot 7 is gone"),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The view `x` cannot be found. SQLSTATE: 42P01; line 1 pos 14;\n'Project",
            "The view `x` cannot be found. (line 1 pos 14)",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==",
            "Syntax error at or near 'selec'. (line 1, pos 0)",
        ),
        (
            "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted.\n\tat a.X\n"  # noqa: ISC004
            "Caused by: java.lang.RuntimeException: why\nCaused by: java.io.IOException: No space\n\tat java.io.Y\n",
            "IOException: No space",
        ),
        (
            '<_Rendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "refused"\n>',
            "the Spark server does not answer: refused (UNAVAILABLE)",
        ),
        ("", ""),
    ],
)
def test_the_line_that_says_what_happened(text: str, line: str) -> None:
    """The line is the innermost cause, without stack traces and internal class names."""
    assert reason(text) == line


def test_a_long_line_is_cut_and_cannot_steer_a_terminal() -> None:
    """Octets of a message in an error are escaped and truncated."""
    line = reason("x\x1b[2J" + "y" * 5000)
    assert "\x1b" not in line
    assert len(line) <= LINE_MAX + 4


def test_the_trace_stands_in_the_log_that_the_line_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python exception is one line too, and its trace is in the log."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(SparkLog, "current", None)
    try:
        os.environ["SLOTMQ_TEST_MISSING"]
    except KeyError as error:
        failure = failure_of(error)
    log = SparkLog.current
    assert log is not None
    assert str(failure) == f"KeyError: 'SLOTMQ_TEST_MISSING' (details: {log.path})"
    assert "test_spark_failure.py" in log.path.read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder of forty old logs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(SparkLog, "current", None)
    folder = tmp_path / "slotmq" / "logs"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / f"spark-20200101T0000{number:02}Z-1.log").write_text("")
    return folder


def test_old_logs_go(folder: Path) -> None:
    """The log folder keeps a limited number of files, the newest ones."""
    log = SparkLog.begin()
    log.add("line")
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 20
    assert names[0] == "spark-20200101T000021Z-1.log"
    assert names[-1] == log.path.name


def test_the_log_of_a_running_server_stays(folder: Path) -> None:
    """The log that the running server writes is kept, however many newer ones there are."""
    files = ServerFiles(folder.parent)
    assert files.live()
    used = folder / "spark-20200101T000003Z-1.log"
    files.write(
        ServerState(
            pid=1, port=1, token="", master="local[1]", cores=1, memory="1g", idle_s=60.0, python="", versions="",
            began="", log=str(used),
        )
    )  # fmt: skip
    SparkLog.begin()
    names = sorted(path.name for path in folder.iterdir())
    assert names[:2] == [used.name, "spark-20200101T000021Z-1.log"]


def test_the_last_words_are_those_that_say_something(tmp_path: Path) -> None:
    """Stack frames and the launcher's warnings are skipped."""
    log = SparkLog(tmp_path / "log")
    assert log.last_line() == ""
    log.path.write_text("WARNING: Using incubator modules: x\nError occurred: Too small maximum heap\n\tat x.y\n\n")
    assert log.last_line() == f"Error occurred: Too small maximum heap (in full: {log.path})"
