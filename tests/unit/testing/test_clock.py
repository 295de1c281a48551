"""The clock that a test moves: whole milliseconds, events in order, never backwards."""

import pytest

from broker.testing import VirtualClock


class Bell:
    """Is due at each of its times, and records when it ran."""

    def __init__(self, clock: VirtualClock, *due_ms: int, again_ms: int = 0) -> None:
        self.clock, self.due_ms, self.again_ms = clock, list(due_ms), again_ms
        self.rang: list[int] = []
        clock.attach(self)

    def next_due_ms(self) -> int | None:
        return min(self.due_ms, default=None)

    def run_due(self) -> None:
        now_ms = int(self.clock() * 1000)
        while self.due_ms and min(self.due_ms) <= now_ms:
            self.due_ms.remove(min(self.due_ms))
            self.rang.append(now_ms)
            if self.again_ms:
                self.due_ms.append(now_ms + self.again_ms)


@pytest.mark.parametrize("start_s", [0, 1_700_000_000, 1_700_000_000.001, 4_000_000_000.999])
def test_a_whole_millisecond_stays_one(start_s: float) -> None:
    """Seconds as a float, times a thousand, give the intended millisecond for each of a thousand values."""
    clock = VirtualClock(start_s)
    start_ms = round(start_s * 1000)
    seen = []
    for _ in range(1000):
        seen.append(int(clock() * 1000))
        clock.advance(0.001)
    assert seen == list(range(start_ms, start_ms + 1000))


def test_what_is_due_on_the_way_happens_at_its_time() -> None:
    """Advancing by a minute runs each event at its own time."""
    clock = VirtualClock(0)
    bell = Bell(clock, 10_000, 59_999, 60_000, 60_001)
    clock.advance(60)
    assert bell.rang == [10_000, 59_999, 60_000]
    assert bell.due_ms == [60_001]


def test_what_follows_from_it_is_due_too() -> None:
    """A retry every ten seconds runs six times in a minute, at its times."""
    clock = VirtualClock(0)
    bell = Bell(clock, 10_000, again_ms=10_000)
    clock.advance(60)
    assert bell.rang == [10_000, 20_000, 30_000, 40_000, 50_000, 60_000]


def test_brokers_that_share_a_clock_take_turns() -> None:
    """The earliest event of all brokers runs next."""
    clock = VirtualClock(0)
    one, other = Bell(clock, 1000, 3000), Bell(clock, 2000)
    clock.advance(5)
    assert (one.rang, other.rang) == ([1000, 3000], [2000])
    clock.detach(one)
    one.due_ms = [6000]
    clock.advance(5)
    assert one.rang == [1000, 3000]


def test_something_that_stays_due_does_not_stop_the_clock() -> None:
    """An event that stays due is not run for ever."""
    clock = VirtualClock(0)
    bell = Bell(clock, 1000)
    bell.run_due = lambda: bell.rang.append(1)  # type: ignore[method-assign]
    clock.advance(5)
    assert int(clock()) == 5


def test_the_clock_does_not_go_back() -> None:
    """A negative time is refused without effect."""
    clock = VirtualClock(7)
    with pytest.raises(ValueError, match="-1 s"):
        clock.advance(-1)
    assert int(clock()) == 7
