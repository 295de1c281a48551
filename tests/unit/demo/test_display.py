"""What a run shows of its progress."""

import pytest

pytest.importorskip("rich", reason="needs the extra [demo]")

from demo.display import Display


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
