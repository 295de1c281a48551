"""What a job says while it works, on a terminal and elsewhere."""

from __future__ import annotations

import io

from broker.pipeline.progress import ERASE, Progress


class Terminal(io.StringIO):
    """Keeps what is written, as a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Clock:
    """A clock that stands until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_a_line_comes_every_five_seconds() -> None:
    """A log file gets few lines: none before five seconds, then one for all that was counted."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress("archive", stream=stream, clock=clock)
    progress.add(slots=1, rows=500)
    assert stream.getvalue() == ""
    clock.now += 5
    progress.add(slots=1, rows=500, lag_slots=7)
    progress.add(rows=1)
    progress.close()
    assert stream.getvalue() == "archive  2 slots  1,000 rows  200 rows/s  7 slots to go\n"


def test_a_terminal_has_one_line_that_is_written_over() -> None:
    """Each telling erases the one before, none comes twice within a quarter of a second, and the end leaves nothing."""
    stream, clock = Terminal(), Clock()
    progress = Progress("archive", stream=stream, clock=clock)
    for _ in range(10):
        progress.add(slots=1)
        clock.now += 0.125
    progress.close()
    said = stream.getvalue()
    assert "\n" not in said
    assert said.count(" slot") == 5
    assert said.endswith(ERASE)


def test_a_step_is_seen_at_once_on_a_terminal() -> None:
    """What the job does now does not wait for the next telling."""
    stream = Terminal()
    progress = Progress("report", stream=stream, clock=Clock())
    progress.add(rows=1)
    progress.step("counting keys")
    assert "counting keys" in stream.getvalue()


def test_quiet_says_nothing() -> None:
    """A quiet job writes neither lines nor progress."""
    stream, clock = Terminal(), Clock()
    progress = Progress("report", quiet=True, stream=stream, clock=clock)
    clock.now += 60
    progress.add(rows=1)
    progress.say("something")
    progress.close()
    assert stream.getvalue() == ""
