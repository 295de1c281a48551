"""The common command line of all jobs: arguments, progress, summary, failures, exit codes."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pytest

from broker.cli.parser import BadUsage, OneLineParser
from broker.pipeline.faults import BAD_RECORDS, GAP, JobFailed
from broker.pipeline.job import Progress, Summary, add_spark, carry_out
from broker.pipeline.spark.log import SparkLog

COLD = "session: Spark of its own (no server runs: --warm starts one)"


@pytest.fixture(autouse=True)
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point commands to a place without a Spark server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def arguments_of(*words: str) -> argparse.Namespace:
    """Return the parsed arguments of a job."""
    parser = OneLineParser(prog="slotmq pipeline job")
    add_spark(parser)
    return parser.parse_args(words)


def test_settings_of_spark_are_taken_apart() -> None:
    """Each --conf is a name and a value, which may contain an equals sign."""
    arguments = arguments_of("--conf", "a.b=c=d", "--conf", "e=", "--master", "local[3]")
    assert arguments.conf == [("a.b", "c=d"), ("e", "")]
    assert arguments.master == "local[3]"


@pytest.mark.parametrize("word", ["nonsense", "=x"])
def test_a_setting_without_a_name_is_wrong_usage(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A --conf that is not K=V ends with exit code 2 and one line."""
    with pytest.raises(SystemExit) as ended:
        arguments_of("--conf", word)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_summary_is_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary is printed as lines, or as one JSON document with --json, and gives the exit code."""
    summary = Summary({"rows": 1234567, "bad_rows": 1, "rate": 12.34, "lake": "a\tb", "none": None}, BAD_RECORDS)
    assert carry_out(arguments_of(), "job", lambda _: summary) == BAD_RECORDS
    assert capsys.readouterr().out.splitlines() == [
        "rows: 1,234,567", "bad rows: 1", "rate: 12.3", "lake: a\\tb", "none: -",
    ]  # fmt: skip
    assert carry_out(arguments_of("--json"), "job", lambda _: summary) == BAD_RECORDS
    assert json.loads(capsys.readouterr().out) == dict(summary.values)


def test_a_failure_is_one_line_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A failed job prints its reason on standard error and nothing on standard output."""

    def work(_: Progress) -> Summary:
        raise JobFailed("seals 3 to 5 are gone", GAP)

    assert carry_out(arguments_of("--json"), "job", work) == GAP
    said = capsys.readouterr()
    assert said.err == f"{COLD}\nslotmq: seals 3 to 5 are gone\n"
    assert said.out == ""


def test_a_defect_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unexpected exception is printed without a trace, which is in the log."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(SparkLog, "current", None)

    def work(_: Progress) -> Summary:
        raise ZeroDivisionError("division by zero")

    assert carry_out(arguments_of(), "job", work) == 1
    said = capsys.readouterr().err.removeprefix(f"{COLD}\n")
    assert said.startswith("slotmq: ZeroDivisionError: division by zero (details: ")
    assert said.count("\n") == 1


def test_wrong_usage_is_left_to_the_command_line() -> None:
    """Usage errors pass through to main, which ends with exit code 2."""

    def work(_: Progress) -> Summary:
        raise BadUsage("no such lake")

    with pytest.raises(BadUsage):
        carry_out(arguments_of(), "job", work)


class Terminal(io.StringIO):
    """Keeps the output, as a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_a_line_comes_every_five_seconds() -> None:
    """A log file gets one line per five seconds, the first after five."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress("archive", stream=stream, clock=clock)
    progress.add(slots=1, rows=500)
    assert stream.getvalue() == ""
    clock.now += 5
    progress.add(slots=1, rows=500, lag={"lag_slots": 7, "lag_messages": 9, "lag_bytes": 3 << 20, "lag_s": 3700.0})
    progress.add(rows=1)
    progress.close()
    assert stream.getvalue() == "archive  2 slots  1,000 rows  200 rows/s  7 slots to go  3 MiB  1 h 1 min behind\n"


def test_a_terminal_has_one_line_that_is_gone_at_the_end() -> None:
    """The progress line is redrawn below other output and erased at the end."""
    pytest.importorskip("rich", reason="the extra spark is not installed")
    stream = Terminal()
    progress = Progress("archive", stream=stream, clock=Clock())
    progress.step("counting keys")
    progress.add(slots=3, lag={"lag_slots": 0, "lag_messages": 0, "lag_bytes": 0, "lag_s": 0.0})
    assert progress.line() == "archive  counting keys  3 slots  0 slots to go"
    progress.say("tap [orders] has a gap")
    progress.close()
    shown = stream.getvalue()
    assert "tap [orders] has a gap\n" in shown
    assert shown.rindex("\x1b[2K") > shown.rindex("archive")


def test_quiet_says_nothing() -> None:
    """A quiet job prints neither lines nor progress."""
    stream, clock = Terminal(), Clock()
    progress = Progress("report", quiet=True, stream=stream, clock=clock)
    clock.now += 60
    progress.add(rows=1)
    progress.say("something")
    progress.close()
    assert stream.getvalue() == ""
