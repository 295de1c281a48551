"""The demo's progress output."""

import pytest

from demo.progress import PlainProgress, Rates, Snapshot


def snapshot(at_s: float, published: int) -> Snapshot:
    """Return a state in which half of the flights are confirmed and four copies of each are delivered."""
    return Snapshot(at_s, published, published // 2, published * 4, "up")


def test_rates_are_those_of_the_last_seconds() -> None:
    """An earlier burst does not count."""
    rates = Rates()
    assert rates.of(snapshot(0.0, 0)) == (0.0, 0.0, 0.0)
    assert rates.of(snapshot(2.0, 200)) == (100.0, 50.0, 400.0)
    assert rates.of(snapshot(50.0, 1_000)) == (0.0, 0.0, 0.0)
    assert rates.of(snapshot(51.0, 1_010)) == (10.0, 5.0, 40.0)


def test_plain_lines_come_every_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """An update in between prints nothing; an event prints at once."""
    progress = PlainProgress(1_000, 4_000)
    for at_s in (0.0, 0.2, 1.9, 2.1):
        progress.show(snapshot(at_s, 100))
    progress.event("broker killed")
    lines = capsys.readouterr().out.splitlines()
    assert [("published 100/1,000" in line, "broker killed" in line) for line in lines] == [
        (True, False),
        (True, False),
        (False, True),
    ]
