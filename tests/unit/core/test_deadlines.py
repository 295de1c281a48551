"""Deadlines: the earliest first, one per key, each once."""

from __future__ import annotations

from functools import partial

from broker.core.deadlines import TURN_SHARE, Clock, Deadlines


def test_what_is_due_is_called_earliest_first() -> None:
    """Due actions run in the order of their times, not in the order of the calls."""
    called: list[str] = []
    deadlines = Deadlines(Clock())
    deadlines.set("late", 30, lambda: called.append("late"))
    deadlines.set("second", 20, lambda: called.append("second"))
    deadlines.set("first", 10, lambda: called.append("first"))
    deadlines.run(20)
    assert called == ["first", "second"]
    assert deadlines.next_ms == 30


def test_a_key_has_one_moment() -> None:
    """Setting a key again moves its time in either direction, and the old time has no effect."""
    called: list[int] = []
    deadlines = Deadlines(Clock())
    deadlines.set("key", 10, lambda: called.append(10))
    deadlines.set("key", 50, lambda: called.append(50))
    deadlines.run(40)
    assert called == []
    deadlines.set("key", 45, lambda: called.append(45))
    deadlines.run(45)
    deadlines.run(50)
    assert called == [45]
    assert deadlines.next_ms is None


def test_a_cancelled_moment_does_not_come() -> None:
    """Cancelling forgets the key; cancelling an unknown key changes nothing."""
    called: list[str] = []
    deadlines = Deadlines(Clock())
    deadlines.set("key", 10, lambda: called.append("key"))
    deadlines.cancel("key")
    deadlines.cancel("other")
    deadlines.run(10)
    assert called == []
    assert deadlines.next_ms is None


def test_an_action_that_sets_its_key_for_now_has_the_next_run() -> None:
    """An action that sets its own key for now runs again in the next run, so no run lasts for ever."""
    called: list[int] = []
    deadlines = Deadlines(Clock())

    def again() -> None:
        called.append(len(called))
        deadlines.set("key", 10, again)

    deadlines.set("key", 10, again)
    deadlines.run(10)
    assert called == [0]
    deadlines.run(10)
    assert called == [0, 1]


def test_a_turn_does_its_share() -> None:
    """Actions beyond the share of one turn run in the next turns, in their order."""
    called: list[int] = []
    deadlines = Deadlines(Clock())

    def act(number: int) -> None:
        called.append(number)
        deadlines.units_left -= TURN_SHARE // 4

    for number in range(10):
        deadlines.set(number, number, partial(act, number))
    for done in (4, 8, 10):
        deadlines.begin_turn()
        deadlines.run(100)
        assert called == list(range(done))
    assert deadlines.next_ms is None


def test_a_turn_without_a_share_left_does_nothing() -> None:
    """Without a share left nothing runs and everything due stays due, so `next_ms` still reports it."""
    called: list[str] = []
    deadlines = Deadlines(Clock())
    deadlines.set("key", 10, lambda: called.append("key"))
    deadlines.units_left = 0
    deadlines.run(10)
    assert (called, deadlines.next_ms) == ([], 10)


def test_the_hook_hears_of_a_new_first_moment_only() -> None:
    """The hook is called when the earliest time becomes earlier, not for each later deadline."""
    rung: list[int | None] = []
    deadlines = Deadlines(Clock())
    deadlines.armed = lambda: rung.append(deadlines.next_ms)
    deadlines.set("a", 30, lambda: None)
    deadlines.set("b", 40, lambda: None)
    deadlines.set("c", 20, lambda: None)
    assert rung == [30, 20]


def test_a_deadline_that_moves_often_does_not_fill_the_heap() -> None:
    """A key that moves often, and keys that are cancelled, leave a bounded number of stale entries in the heap."""
    deadlines = Deadlines(Clock())
    for moment in range(10_000):
        deadlines.set("key", moment, lambda: None)
    assert len(deadlines._actions) == 1
    assert len(deadlines._heap) <= 65
    for key in range(10_000):
        deadlines.set(key, key, lambda: None)
    for key in range(10_000):
        deadlines.cancel(key)
    assert len(deadlines._heap) <= 65
