"""The lag of a tap's cursors."""

from __future__ import annotations

import pytest

from broker.slot_files.seal_log import Seal
from broker.slot_files.seal_view import LagTable


def seal(number: int, count: int, first_ts_ms: int, *, ahead_ms: int = 0) -> Seal:
    """Return a seal with 100 bytes per message."""
    return Seal(number, "/", "t", 1, 1, 1 + count, count, first_ts_ms, first_ts_ms, 100 * count, 0, ahead_ms)


@pytest.mark.parametrize(
    ("passed", "lag"),
    [(0, (3, 9, 900, 50.0)), (2, (2, 7, 700, 40.0)), (4, (2, 7, 700, 40.0)), (5, (1, 4, 400, 10.0)), (9, (0, 0, 0, 0))],
)
def test_what_a_cursor_has_yet_to_pass(passed: int, lag: tuple[float, ...]) -> None:
    """Lag is in slot files, messages, bytes and seconds; seals of other taps in between do not count."""
    table = LagTable([seal(2, 2, 10_000), seal(5, 3, 20_000), seal(9, 4, 50_000)])
    assert tuple(table.behind(passed, 60_000).values()) == lag


def test_a_tap_without_slot_files() -> None:
    """Without slot files no cursor has a lag."""
    assert not any(LagTable([]).behind(0, 60_000).values())


def test_a_corrected_clock_makes_no_lag() -> None:
    """The system clock went back an hour between two slot files: the older file's lag is 10 s, not an hour."""
    table = LagTable([seal(1, 1, 3_600_000), seal(2, 1, 5_000, ahead_ms=3_600_000)])
    assert table.behind(0, 10_000)["lag_s"] == 10
    assert table.behind(0, 0)["lag_s"] == 0
