"""A lone publish: when the loop itself writes and syncs it, and when the thread does."""

from __future__ import annotations

import pytest

from broker.delivery.committer import FAST_S, FAST_SYNCS, LONE_MAX_BYTES
from broker.store.damage import StoreFailed
from tests.unit.delivery.commit_room import FAILURE, CommitRoom, FakePublisher


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
