"""The supervision of a run, and what it shows of the progress."""

import pytest

pytest.importorskip("rich", reason="needs the extra [demo]")

from demo.display import Display, Watch
from demo.ledger import Count, Ledger


def test_watch_knows_when_a_run_began_was_published_and_moved_last() -> None:
    """Each time is that of the check that noticed it; a run is complete when all deliveries are seen."""
    ledger = Ledger(rows=2, queues=1, clients=1, checksums=[0, 0])
    counts = ledger.counts(0)
    watch = Watch(ledger, deliveries=1, now_s=1.0)
    watch.read(2.0)
    assert (watch.began_s, watch.moved_s) == (None, 1.0)
    counts[Count.PUBLISHED], counts[Count.RESENT] = 3, 1
    assert watch.read(3.0) == (2, 0, 0)
    counts[Count.CONFIRMED] = 2
    watch.read(4.0)
    assert not watch.complete
    counts[Count.DELIVERED] = counts[Count.DISTINCT] = 1
    watch.read(5.0)
    watch.read(6.0)
    assert watch.complete
    assert (watch.began_s, watch.published_s, watch.moved_s) == (3.0, 4.0, 5.0)


def test_plain_lines_come_every_two_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update in between prints nothing; an event prints at once, in one line however long it is."""
    times = iter([0.0])
    monkeypatch.setattr("demo.display.clock", lambda: next(times))
    display = Display(1_000, 4_000, plain=True, above=str)
    for at_s in (0.0, 0.2, 1.9, 2.1):
        times = iter([at_s] * 3)
        display.show((100, 50, 400), "broker up")
    times = iter([3.0])
    display.event("broker killed" + " and so on" * 100)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:31] for line in lines] == [
        "[   0.0 s] published 100/1,000 ",
        "[   2.1 s] published 100/1,000 ",
        "[   3.0 s] broker killed and so",
    ]
