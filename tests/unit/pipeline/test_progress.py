"""The output of a running job, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from broker.pipeline.job import Progress

pytest.importorskip("rich", reason="the extra spark is not installed")


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
