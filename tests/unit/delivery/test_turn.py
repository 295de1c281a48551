"""A loop turn: how much input it processes, and of which connections."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from broker.delivery.turn import LONE_READS, PIECE_MIN_BYTES, Outlet, Schedule, Turn, TurnEngine

SHARE_BYTES = 4 * PIECE_MIN_BYTES


class Reader(Outlet):
    """A connection with much input, which reads what its piece of a turn's share allows."""

    def __init__(self, turn: Turn, name: str, waiting_bytes: int, read: list[tuple[str, int]]) -> None:
        self._turn = turn
        self._name = name
        self._read = read
        self.waiting_bytes = waiting_bytes

    def output_waits(self) -> None:
        """Do nothing: this connection has no output."""

    def greet(self) -> None:
        """Do nothing: no handshake."""

    def flush(self) -> None:
        """Do nothing: this connection has no output."""

    def resume(self) -> None:
        """Read one piece, and queue again if more is left."""
        piece_bytes = min(self._turn.piece_bytes(), self.waiting_bytes)
        self._turn.left_bytes -= piece_bytes
        self.waiting_bytes -= piece_bytes
        self._read.append((self._name, piece_bytes))
        if self.waiting_bytes:
            self._turn.pause(self)


def scheduled_turn() -> tuple[Turn, list[Callable[[], None]]]:
    """Return a turn, and the list in which its loop records what is scheduled."""
    asked: list[Callable[[], None]] = []
    loop: Any = SimpleNamespace(call_soon=asked.append)

    def fail(error: BaseException) -> None:
        raise error

    return Turn(loop, lambda: 0.0, fail, SHARE_BYTES), asked


def test_a_turn_reads_one_share_whoever_waits() -> None:
    """Each waiting connection gets one piece, in order of arrival, before any gets a second."""
    turn, asked = scheduled_turn()
    read: list[tuple[str, int]] = []
    for name in "abcdef":
        turn.pause(Reader(turn, name, 2 * PIECE_MIN_BYTES, read))
    turns = 0
    while asked:
        asked.pop()()
        turns += 1
        assert sum(size_bytes for _name, size_bytes in read) <= turns * SHARE_BYTES
    assert [name for name, _size_bytes in read] == list("abcdefabcdef")
    assert turns == 3  # twelve pieces, four per turn


def test_who_waits_alone_has_the_whole_share() -> None:
    """A connection that waits alone gets the whole share."""
    turn, asked = scheduled_turn()
    read: list[tuple[str, int]] = []
    turn.pause(Reader(turn, "a", 2 * SHARE_BYTES, read))
    while asked:
        asked.pop()()
    assert read == [("a", SHARE_BYTES), ("a", SHARE_BYTES)]


def test_connections_that_are_touched_are_flushed_once_a_turn_was_asked_for() -> None:
    """One turn is scheduled, however many connections have output."""
    turn, asked = scheduled_turn()
    flushed: list[str] = []
    for name in "ab":
        turn.touch(Writer(name, flushed))
    assert len(asked) == 1
    asked.pop()()
    assert flushed == ["a", "b"]
    assert not asked


def test_who_is_touched_by_an_engine_is_flushed_by_the_same_turn_and_by_no_other() -> None:
    """A delivery is flushed in its own turn; output that appears during the flush waits for the next turn."""
    turn, asked = scheduled_turn()
    flushed: list[str] = []
    late = Writer("late", flushed)

    class Consumer(Writer):
        def flush(self) -> None:
            super().flush()
            turn.touch(late)

    class Delivering(Engine):
        has_work = False

        def turn(self) -> int:
            self.schedule.due = False
            turn.touch(Consumer("consumer", flushed))
            turn.touch(late)
            return 0

    turn.engines.append(Delivering(turn, flushed))
    turn.schedule()
    asked.pop()()
    assert flushed == ["consumer", "late"]
    assert len(asked) == 1
    asked.pop()()
    assert flushed == ["consumer", "late", "late"]
    assert not asked


def test_a_turn_that_had_much_to_do_is_followed_by_half_a_share() -> None:
    """A busy turn is followed by one with half a share, and that by one with a whole share."""
    turn, asked = scheduled_turn()
    read: list[tuple[str, int]] = []
    turn.pause(Reader(turn, "a", 2 * SHARE_BYTES, read))
    turn.shorten()
    while asked:
        asked.pop()()
    assert [size_bytes for _name, size_bytes in read] == [SHARE_BYTES // 2, SHARE_BYTES, SHARE_BYTES // 2]


class Writer(Outlet):
    """A connection with output."""

    def __init__(self, name: str, written: list[str]) -> None:
        self._name = name
        self._written = written

    def output_waits(self) -> None:
        """Do nothing: the test touches it."""

    def greet(self) -> None:
        """Do nothing: no handshake."""

    def flush(self) -> None:
        """Write the output."""
        self._written.append(self._name)

    def resume(self) -> None:
        """Do nothing: this connection has no input."""


class Engine(TurnEngine):
    """An engine that always has work."""

    has_work = True

    def __init__(self, turn: Turn, written: list[str]) -> None:
        super().__init__(Schedule(turn))
        self._written = written

    def turn(self) -> int:
        """Do it."""
        self._written.append("work")
        return 0

    def page_out(self) -> None:
        """Do it."""
        self._written.append("page")


def test_a_turn_writes_its_output_before_it_pages_out() -> None:
    """No delivery waits for files; an engine that asks twice pages out once, and not again in the next turn."""
    turn, asked = scheduled_turn()
    written: list[str] = []
    engine = Engine(turn, written)
    turn.engines.append(engine)
    turn.page_out_later(engine)
    turn.page_out_later(engine)
    for name in "ab":
        turn.touch(Writer(name, written))
    turn.pause(Reader(turn, "reader", 1, []))
    asked.pop()()
    assert written == ["work", "a", "b", "page"]
    turn.schedule()
    asked.pop()()
    assert written[4:] == ["work"]


def test_a_turn_works_and_writes_only_while_it_may_act() -> None:
    """A node whose lease has ended delivers nothing; what was not written waits, also in the middle of a turn."""
    turn, asked = scheduled_turn()
    written: list[str] = []
    turn.engines.append(Engine(turn, written))
    allowed = iter([True, True, True, False, False])
    turn.act_while(lambda: next(allowed, True))
    for name in "abc":
        turn.touch(Writer(name, written))
    asked.pop()()  # allowed: the turn, a and b
    assert written == ["work", "a", "b"]
    turn.schedule()
    asked.pop()()
    assert written == ["work", "a", "b"]
    turn.schedule()
    asked.pop()()
    assert written == ["work", "a", "b", "work", "c"]
    assert not asked


def test_a_read_that_is_alone_in_its_loop_step_runs_the_turn() -> None:
    """After a read that was alone in its loop step, the next reads run a turn each, until one is counted again."""
    turn, asked = scheduled_turn()
    assert not turn.begin_read()
    assert len(asked) == 1
    asked.pop()()
    for _ in range(2):
        for _ in range(LONE_READS):
            assert turn.begin_read()
            assert turn.scheduled, "work that appears meanwhile schedules no second turn"
            turn.touch(Writer("a", []))
            turn.run()
        assert not asked
        assert not turn.begin_read()
        asked.pop()()
    assert turn.count == 2 * LONE_READS + 3


def test_reads_of_one_loop_step_share_a_turn() -> None:
    """When several connections are read in a loop step, their messages for one consumer are written once."""
    turn, asked = scheduled_turn()
    for _ in range(20):
        assert [turn.begin_read() for _ in range(3)] == [False] * 3
        assert len(asked) == 1
        asked.pop()()
    assert turn.count == 20


def test_a_read_in_a_loop_step_with_a_turn_leaves_the_work_to_it() -> None:
    """A lone read runs no turn of its own when one is scheduled: a connection with a large read has its share first."""
    turn, asked = scheduled_turn()
    turn.begin_read()
    asked.pop()()
    turn.schedule()
    assert not turn.begin_read()
    assert len(asked) == 1
