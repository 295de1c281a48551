"""The committer: which publishes one sync confirms, and which it must not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from broker.delivery.committer import FAST_S, FAST_SYNCS, LONE_MAX_BYTES, Committer
from broker.store.damage import StoreFailed
from broker.store.files import File
from broker.store.memory_files import FileContent, MemoryFile, MemoryFiles
from broker.store.message_log import MessageLog
from broker.store.record import encode_settled
from broker.store.segment import HEADER_BYTES, OFFSET_BITS

FOLDER = Path("/log")
FAILURE = StoreFailed(FOLDER, "Input/output error")


class Promise:
    """A future that calls its callbacks at once."""

    def __init__(self) -> None:
        self._done = False
        self._error: Exception | None = None
        self._then: list[Callable[[Any], None]] = []

    def done(self) -> bool:
        """Return whether a result or an exception is set."""
        return self._done

    def result(self) -> None:
        """Raise the exception, if one is set."""
        if self._error is not None:
            raise self._error

    def set_result(self, _value: None) -> None:
        """Set the result."""
        self._settle(None)

    def set_exception(self, error: Exception) -> None:
        """Set the exception."""
        self._settle(error)

    def add_done_callback(self, then: Callable[[Any], None]) -> None:
        """Call `then` when the promise is settled."""
        self._then.append(then)

    def _settle(self, error: Exception | None) -> None:
        assert not self._done, "settled twice"
        self._done, self._error = True, error
        for then in self._then:
            then(self)

    def __await__(self) -> Generator[None, None, None]:
        while not self._done:
            yield
        self.result()


class Alarm:
    """A timer of the fake loop."""

    cancelled = False

    def __init__(self, delay_s: float, ring: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.ring = ring

    def cancel(self) -> None:
        """Cancel the timer."""
        self.cancelled = True


class GatedDisk(MemoryFiles):
    """A disk whose syncs end when and how the test decides, by a clock of its own, once it is gated."""

    gated = False

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.outcomes: SimpleQueue[tuple[Exception | None, float]] = SimpleQueue()
        self.make_folder(FOLDER)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file."""
        super().open(path, write=write, create=create)
        return GatedFile(path, self.contents[path], self)


class GatedFile(MemoryFile):
    """A file of the disk."""

    def __init__(self, path: Path, content: FileContent, disk: GatedDisk) -> None:
        super().__init__(path, content)
        self._disk = disk

    def sync(self) -> None:
        """Wait for the test."""
        if self._disk.gated:
            error, lasts_s = self._disk.outcomes.get(timeout=10)
            self._disk.now_s += lasts_s
            if error is not None:
                raise error


class NumberedLog:
    """A log of numbered records."""

    def __init__(self) -> None:
        self.disk = GatedDisk()
        self.log = MessageLog(self.disk, FOLDER, segment_bytes=1 << 24, sync=True)
        self.log.begin()
        self.log.time_syncs(lambda: self.disk.now_s)
        self.disk.gated = True
        self._ends: list[int] = []

    def append(self, count: int = 1) -> None:
        """Append the next record; it is as long as it has counts."""
        ids = range(2, 2 * count + 2, 2)
        self.log.append(encode_settled(self.log.synced, 0, 1, ids))
        self._ends.append(self.log.position)

    def upto(self, position: int) -> list[int]:
        """Return the numbers of the records that end before a position."""
        return [number for number, end in enumerate(self._ends, 1) if end <= position]

    @property
    def completed(self) -> list[int]:
        """The numbers of the records that are on disk."""
        return self.upto(self.log.confirmable)


class FakePublisher:
    """A channel that publishes and receives confirms."""

    def __init__(self, name: str, room: Room) -> None:
        self.name = name
        self._room = room
        self.published = self.confirmed = self.logged = 0
        self.waiting = False

    def publish(self, *, persistent: bool = True, count: int = 1) -> None:
        """Publish a message."""
        self.published += 1
        if persistent:
            self._room.log.append(count)
            self.logged = self.published
        if not self.waiting:
            self.waiting = True
            as_publisher: Any = self
            self._room.committer.wait(as_publisher)

    def confirm(self, upto: int) -> None:
        """Record a confirm."""
        if upto > self.confirmed:
            self.confirmed = upto
            self._room.confirms.append((self.name, upto))


class Room:
    """A committer on a fake log and a fake loop, which the test controls."""

    def __init__(self) -> None:
        self.log = NumberedLog()
        self.ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.alarms: list[Alarm] = []
        self.confirms: list[tuple[str, int]] = []
        self.failures: list[BaseException] = []
        self.scheduled = 0
        loop: Any = self
        self.committer = Committer(self.log.log, loop, self._schedule, self.failures.append)

    def _schedule(self) -> None:
        self.scheduled += 1

    # -- the loop

    def call_soon_threadsafe(self, ended: Callable[[BaseException | None], None], error: BaseException | None) -> None:
        """Pass the end of a write to the test."""
        self.ended.put(lambda: ended(error))

    def create_future(self) -> Promise:
        """Return a promise."""
        return Promise()

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> Alarm:
        """Set a timer, which fires when the test says so."""
        self.alarms.append(Alarm(delay_s, ring))
        return self.alarms[-1]

    # -- the test

    @property
    def writing(self) -> list[int]:
        """The numbers of the records that are being written."""
        batch = self.committer._batch
        return [] if batch is None else self.log.upto(batch.end)[len(self.log.completed) :]

    def turn(self) -> None:
        """Run the requested turns."""
        while self.scheduled:
            self.scheduled = 0
            self.committer.turn()

    def quiet_turn(self, number: int) -> None:
        """Run a turn without other work."""
        self.scheduled = 0
        self.committer.turn(number)

    def end_write(self, error: Exception | None = None, lasts_s: float = 0.0) -> None:
        """End the running write."""
        self.log.disk.outcomes.put((error, lasts_s))
        self.ended.get(timeout=10)()

    def drain(self) -> Generator[Any, None, None]:
        """Start a drain and return its coroutine."""
        draining = self.committer.drain().__await__()
        next(draining)
        return draining


def test_a_sync_confirms_what_was_appended_before_it_began() -> None:
    """A message that is published during a sync waits for the next one, also if this sync confirms its publisher."""
    room = Room()
    one, two = FakePublisher("one", room), FakePublisher("two", room)
    one.publish()
    one.publish()
    two.publish()
    room.turn()
    assert room.writing == [1, 2, 3]
    one.publish()
    two.publish()
    two.publish()
    room.turn()
    assert room.confirms == []
    room.end_write()
    assert room.confirms == [("one", 2), ("two", 1)]
    written_bytes = room.log.log.written - (1 << OFFSET_BITS | HEADER_BYTES)
    assert (sum(room.committer.tally.counts), room.committer.tally.total_bytes) == (1, written_bytes)
    assert room.log.completed == [1, 2, 3]
    room.turn()
    assert room.writing == [4, 5, 6]
    room.end_write()
    assert room.confirms[2:] == [("one", 3), ("two", 3)]
    assert room.writing == []


def test_transient_messages_are_confirmed_at_once() -> None:
    """A publisher without pending persistent messages is confirmed in the same turn, also during a sync."""
    room = Room()
    transient, durable = FakePublisher("transient", room), FakePublisher("durable", room)
    transient.publish(persistent=False)
    room.turn()
    assert room.confirms == [("transient", 1)]
    assert not room.writing
    durable.publish()
    transient.publish(persistent=False)
    room.turn()
    assert room.confirms == [("transient", 1), ("transient", 2)]
    transient.publish(persistent=False)
    room.turn()
    assert room.confirms[2:] == [("transient", 3)]
    room.end_write()
    assert room.confirms[3:] == [("durable", 1)]


def test_confirms_of_one_channel_keep_their_order() -> None:
    """A transient message after a persistent one is confirmed with it, because confirms are in order."""
    room = Room()
    mixed = FakePublisher("mixed", room)
    mixed.publish()
    mixed.publish(persistent=False)
    room.turn()
    assert room.confirms == []
    mixed.publish(persistent=False)
    room.turn()
    assert room.confirms == [], "the third waits on the list, whose second is not safe yet"
    room.end_write()
    room.turn()
    assert [upto for _, upto in room.confirms] == [2, 3]


def test_a_failed_sync_confirms_nothing_and_fails_who_waits() -> None:
    """After a failed write nobody is confirmed, every present and later drain fails, and the failure is reported."""
    room = Room()
    publisher = FakePublisher("one", room)
    publisher.publish()
    first = room.drain()
    room.turn()
    publisher.publish()
    second = room.drain()
    room.turn()
    room.end_write(FAILURE)
    assert room.failures == [FAILURE]
    assert room.confirms == []
    assert room.log.completed == []
    for draining in (first, second):
        with pytest.raises(StoreFailed):
            next(draining)
    with pytest.raises(StoreFailed):
        room.drain()


def test_a_drain_ends_with_what_was_appended_before_it() -> None:
    """A drain that starts during a sync waits for the next one, also without a publisher; an idle one ends at once."""
    room = Room()
    with pytest.raises(StopIteration):
        room.drain()
    FakePublisher("one", room).publish()
    room.turn()
    room.log.append()
    draining = room.drain()
    room.turn()
    room.end_write()
    next(draining)
    room.turn()
    assert room.writing == [2]
    next(draining)
    room.end_write()
    with pytest.raises(StopIteration):
        next(draining)


def test_records_that_nobody_waits_for_are_written_lazily() -> None:
    """Acks wait for one shared timer, or go with the first sync that is requested."""
    room = Room()
    room.log.append()
    room.committer.turn()
    room.log.append()
    room.committer.turn()
    assert not room.writing
    (alarm,) = room.alarms
    FakePublisher("one", room).publish()
    room.turn()
    assert room.writing == [1, 2, 3]
    assert alarm.cancelled
    room.end_write()
    room.turn()
    room.log.append()
    room.committer.turn()
    room.alarms[1].ring()
    room.turn()
    assert room.writing == [4]
    room.end_write()
    assert room.confirms == [("one", 1)]


def test_a_defect_in_a_confirm_ends_the_committer() -> None:
    """An error while confirming is handled like a disk failure: it is reported, and every waiter fails."""
    room = Room()
    publisher = FakePublisher("one", room)
    publisher.publish()
    draining = room.drain()
    room.turn()

    def fails(upto: int) -> None:
        raise ValueError("a defect")

    publisher.confirm = fails  # type: ignore[method-assign]
    room.end_write()
    assert [type(failure) for failure in room.failures] == [ValueError]
    with pytest.raises(ValueError, match="a defect"):
        next(draining)


# -- the lone publish


class LonePublisher(FakePublisher):
    """A publisher that waits for the confirm of each message, and the turns that this causes."""

    def __init__(self, room: Room) -> None:
        super().__init__("lone", room)
        self.number = 1

    def publish_in_thread(self, lasts_s: float = 0.0) -> None:
        """Publish; the thread writes, and another turn writes the confirm."""
        self.publish()
        self._room.quiet_turn(self.number)
        assert self.confirmed < self.published, "the loop waited for the disk"
        self._room.end_write(lasts_s=lasts_s)
        self.number += 2

    def publish_here(self, error: Exception | None = None, lasts_s: float = 0.0) -> None:
        """Publish; the turn writes, syncs and confirms."""
        self.publish()
        self._room.log.disk.outcomes.put((error, lasts_s))
        self._room.quiet_turn(self.number)
        assert self.confirmed == self.published, "the thread writes"
        self.number += 1


@pytest.fixture
def lone() -> LonePublisher:
    """Return a lone publisher whose next message is written by the loop."""
    publisher = LonePublisher(Room())
    for _ in range(FAST_SYNCS):
        publisher.publish_in_thread(FAST_S / 2)
    return publisher


def test_a_lone_publish_is_synced_within_its_turn(lone: LonePublisher) -> None:
    """Behind enough fast syncs the loop writes the batches of one publisher that waits for each confirm."""
    for number in range(FAST_SYNCS + 1, FAST_SYNCS + 4):
        lone.publish_here()
        assert lone.confirmed == number
    assert lone._room.log.completed == list(range(1, lone.published + 1))


def test_after_a_slow_sync_the_thread_writes_again(lone: LonePublisher) -> None:
    """The loop waits for one slow sync at most, and then for none until as many as before were fast."""
    lone.publish_here(lasts_s=FAST_S * 2)
    for lasts_s in [0.0] * (FAST_SYNCS - 1) + [FAST_S * 2] + [0.0] * FAST_SYNCS:
        lone.publish_in_thread(lasts_s)
    lone.publish_here()


def test_the_thread_writes_beside_other_work(lone: LonePublisher) -> None:
    """The loop waits for no sync with deliveries due, after turns of others, for two publishers, or a large batch."""
    room = lone._room

    def published_in_thread(number: int) -> None:
        confirmed = lone.confirmed
        room.quiet_turn(number)
        assert lone.confirmed == confirmed, "the loop waited for the disk"
        room.end_write()
        lone.number = max(lone.number, number + 2)

    lone.publish()
    published_in_thread(0)  # the turn delivers
    lone.publish_here()
    lone.publish()
    published_in_thread(lone.number + 5)
    lone.publish_here()
    lone.publish()
    FakePublisher("another", room).publish()
    published_in_thread(lone.number)
    lone.publish()
    published_in_thread(lone.number)
    lone.publish_here()
    lone.publish()
    lone.publish()
    published_in_thread(lone.number)
    lone.publish_here()
    lone.publish(count=LONE_MAX_BYTES // 8)
    published_in_thread(lone.number)


def test_publishers_that_have_a_turn_each_share_syncs(lone: LonePublisher) -> None:
    """The loop waits for no sync where several publishers wait for one confirm each, in turns of their own."""
    room = lone._room
    lone.publish_here()
    another = FakePublisher("another", room)
    for number in range(lone.number, lone.number + 6, 2):
        for turn, publisher in enumerate((another, lone)):
            publisher.publish()
            room.quiet_turn(number + turn)
            assert publisher.confirmed < publisher.published, "the loop waited for the disk"
            room.end_write()


def test_a_lone_publish_that_fails_ends_the_turn(lone: LonePublisher) -> None:
    """A failed sync of the loop ends the broker before the turn can write anything."""
    with pytest.raises(StoreFailed):
        lone.publish_here(FAILURE)
    assert lone._room.failures == [FAILURE]
    assert lone.confirmed == FAST_SYNCS
    with pytest.raises(StoreFailed):
        lone._room.drain()
