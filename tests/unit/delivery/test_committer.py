"""The committer: which publishes one sync confirms, which it must not, and when the loop itself syncs a lone one."""

from __future__ import annotations

import pytest

from broker.delivery.committer import (
    FAST_S,
    FAST_SYNCS,
    GATHER_BYTES,
    GATHER_TURNS,
    LAZY_MAX_BYTES,
    LONE_MAX_BYTES,
)
from broker.store.damage import StoreFailed
from broker.store.segment import HEADER_BYTES, OFFSET_BITS
from tests.unit.delivery.commit_room import FAILURE, CommitRoom, FakePublisher

MUCH = GATHER_BYTES // 8  # message ids, of 8 bytes each, in a record


@pytest.fixture
def room() -> CommitRoom:
    """Return a committer that the test controls."""
    return CommitRoom()


def test_a_sync_confirms_what_was_appended_before_it_began(room: CommitRoom) -> None:
    """A message that is published during a sync waits for the next one, also if this sync confirms its publisher."""
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


def test_transient_messages_are_confirmed_at_once(room: CommitRoom) -> None:
    """A publisher without pending persistent messages is confirmed in the same turn, also during a sync."""
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


def test_confirms_of_one_channel_keep_their_order(room: CommitRoom) -> None:
    """A transient message after a persistent one is confirmed with it, because confirms are in order."""
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


def test_a_failed_sync_confirms_nothing_and_fails_who_waits(room: CommitRoom) -> None:
    """After a failed write no one is confirmed, every present and later drain fails, and the failure is reported."""
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


def test_a_drain_ends_with_what_was_appended_before_it(room: CommitRoom) -> None:
    """A drain that starts during a sync waits for the next one, also without a publisher; an idle one ends at once."""
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


def test_records_that_nobody_waits_for_are_written_lazily(room: CommitRoom) -> None:
    """Acks wait for one shared timer, or go with the first sync that is requested."""
    room.log.append()
    room.committer.turn(0, False)
    room.log.append()
    room.committer.turn(0, False)
    assert not room.writing
    (alarm,) = room.alarms
    FakePublisher("one", room).publish()
    room.turn()
    assert room.writing == [1, 2, 3]
    assert alarm.cancelled
    room.end_write()
    room.turn()
    room.log.append()
    room.committer.turn(0, False)
    room.alarms[1].ring()
    room.turn()
    assert room.writing == [4]
    room.end_write()
    assert room.confirms == [("one", 1)]


def test_many_records_that_nobody_waits_for_are_written_at_once(room: CommitRoom) -> None:
    """They do not wait for the timer: their publisher would be paused meanwhile."""
    room.log.append(LAZY_MAX_BYTES // 8)
    room.one_turn()
    room.turn()
    assert room.writing == [1]
    assert not room.alarms
    room.end_write()


def test_a_defect_in_a_confirm_ends_the_committer(room: CommitRoom) -> None:
    """An error while confirming is handled like a disk failure: it is reported, and every waiter fails."""
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


def test_a_batch_gathers_while_each_turn_appends_much(room: CommitRoom) -> None:
    """Publishes at full speed are synced in the first turn that appends little, all of them at once."""
    publisher = FakePublisher("one", room)
    publisher.publish()
    for _ in range(2):
        publisher.publish(count=MUCH)
        room.one_turn()
        assert not room.writing
        assert room.scheduled, "nothing else may cause the turn that writes the batch"
    publisher.publish()
    room.one_turn()
    assert room.writing == [1, 2, 3, 4]
    room.end_write()
    assert room.confirms == [("one", 4)]


def test_a_batch_gathers_for_a_bounded_number_of_turns(room: CommitRoom) -> None:
    """Publishers that never pause are confirmed nevertheless, and each batch has all of these turns."""
    publisher = FakePublisher("one", room)
    for _ in range(2):
        first = publisher.published + 1
        publisher.publish()
        for _ in range(GATHER_TURNS):
            publisher.publish(count=MUCH)
            room.one_turn()
            assert not room.writing
        publisher.publish(count=MUCH)
        room.one_turn()
        assert room.writing == list(range(first, publisher.published + 1))
        room.end_write()


@pytest.mark.parametrize("urgent", [False, True])
def test_what_nobody_can_add_to_is_written_at_once(urgent: bool, room: CommitRoom) -> None:
    """A single large publish, whose publisher waits for its confirm, and a change of the topology do not gather."""
    publisher = FakePublisher("one", room)
    if urgent:
        publisher.publish()
        room.committer.sync_soon()
    publisher.publish(count=MUCH)
    room.one_turn()
    assert room.writing == list(range(1, publisher.published + 1))
    room.end_write()


class LonePublisher(FakePublisher):
    """A publisher that waits for the confirm of each message, and the turns that this causes."""

    def __init__(self, room: CommitRoom) -> None:
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
    publisher = LonePublisher(CommitRoom())
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
