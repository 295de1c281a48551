"""The progress: one line that is overwritten on a terminal, separate lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io

import pytest

from broker.perf.progress import ELSEWHERE_EVERY_S, TERMINAL_EVERY_S, RunProgress, interval_line
from broker.perf.result import Interval, LatencyPair

ERASE = "\r\x1b[K"
INTERVAL = Interval(3.0, 60_000, 0, 59_000, LatencyPair(139.2, 1_130.0))
LINE = "time 3.00 s  published 120,000/s  delivered 118,000/s  p50 139 us  p99 1.13 ms"


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")


def test_an_interval_is_told_by_its_rates() -> None:
    """Counts become rates per interval; zero counts are omitted, except in a standstill."""
    assert interval_line(INTERVAL, 0.5) == LINE
    assert interval_line(Interval(1.0), 1.0) == "time 1.0 s  published 0/s  delivered 0/s"
    assert interval_line(Interval(1.0, confirmed=7), 2.0) == (
        "time 1.0 s  published 0/s  confirmed 3.5/s  delivered 0/s"
    )


def test_a_terminal_has_one_line_that_goes_at_the_end() -> None:
    """Each interval overwrites the line, and the end clears it."""
    terminal = Terminal()
    with RunProgress(stream=terminal) as progress:
        progress.show(LINE)
        progress.show(LINE)
    assert terminal.getvalue() == f"{ERASE}{LINE}{ERASE}{LINE}{ERASE}"


def test_a_narrow_terminal_cuts_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is cut to the width, because a wrapped line could not be overwritten."""
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    RunProgress(stream=terminal).show(LINE)
    assert terminal.getvalue() == f"{ERASE}{LINE[:19]}"


def test_elsewhere_each_interval_is_a_line() -> None:
    """A file or pipe gets separate lines."""
    stream = io.StringIO()
    with RunProgress(stream=stream) as progress:
        progress.show(LINE)
        progress.show("one")
    assert stream.getvalue() == f"{LINE}\none\n"


@pytest.mark.parametrize(("stream", "every_s"), [(Terminal(), TERMINAL_EVERY_S), (io.StringIO(), ELSEWHERE_EVERY_S)])
def test_a_share_is_shown_as_often_as_eyes_follow(stream: io.StringIO, every_s: float) -> None:
    """The first and the last of a thousand immediate steps are shown; later steps at intervals."""
    now_s = 100.0
    progress = RunProgress(stream=stream, clock=lambda: now_s)
    for done in range(1001):
        progress.share("binding", done, 1000)
    for done in range(500):
        now_s += every_s / 4
        progress.share("draining", done, 1000)
    text = stream.getvalue()
    assert text.count("binding") == 2
    assert "binding  0 of 1,000, 0 %" in text
    assert "binding  1,000 of 1,000, 100 %" in text
    assert text.count("draining") == 125


def test_quiet_is_silent() -> None:
    """With --quiet nothing is written."""
    terminal = Terminal()
    with RunProgress(quiet=True, stream=terminal) as progress:
        progress.show(LINE)
        progress.share("binding", 0, 10)
        progress.show("one")
    assert terminal.getvalue() == ""
