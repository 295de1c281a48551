"""Queues whose consumers will soon have room again: their publishers wait a moment, and others do not."""

from __future__ import annotations

import pytest

from broker.core.publish_credit import SHARE_ENTRIES
from broker.core.queue.queue import Queue
from broker.delivery.awaited_queues import BUSY_MESSAGES, WAIT_MS
from tests.raw_client import publish_frames
from tests.unit.core.room import Client
from tests.unit.delivery.test_worker import Office

PREFETCH = 1000
MESSAGES = 30_000


def flood(office: Office, queue: Queue) -> Client:
    """Return a publisher that has sent many messages for a queue; the machine continues with them when it is fed."""
    publisher = office.room.enter()
    publisher.machine.feed(publish_frames(1, "", queue.name, b"x" * 16) * MESSAGES)
    return publisher


def end_wait(office: Office) -> None:
    """Let the time pass that publishers wait at most."""
    office.room.clock.now_ms += WAIT_MS
    office.room.deadlines.run(office.room.clock.now_ms)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_publisher_adds_no_more_than_consumers_that_ack_take(turns: int) -> None:
    """A consumer that has used up its prefetch acks a few turns later: until then its publishers wait."""
    office = Office(1)
    queue = office.queue("q", prefetch=PREFETCH)
    publisher = flood(office, queue)
    settled = rounds = most = 0
    while settled < MESSAGES:
        rounds += 1
        assert rounds < MESSAGES
        for _ in range(turns):
            office.workers.turn()
            most = max(most, queue.ready)
            publisher.machine.feed(b"")
        settled += queue.unacked
        office.client.basic().ack(0, multiple=True)
        office.client.machine.discard_output()
    assert most < 3 * SHARE_ENTRIES


def test_a_publisher_waits_only_a_moment_for_consumers_that_do_not_ack() -> None:
    """After that each turn brings a whole share, as long as the consumers have no room."""
    office = Office(1)
    queue = office.queue("q", prefetch=PREFETCH)
    publisher = flood(office, queue)
    for _ in range(5):
        office.workers.turn()
        publisher.machine.feed(b"")
    waiting = queue.ready
    assert queue.lags
    assert waiting < 3 * SHARE_ENTRIES
    end_wait(office)
    assert not queue.lags
    for turns in range(1, 4):
        office.workers.turn()
        publisher.machine.feed(b"")
        assert queue.ready == waiting + turns * SHARE_ENTRIES


def take(office: Office, queue: Queue, published: int) -> None:
    """Ack what was delivered from the only queue, publish this much, and run a turn."""
    office.client.basic().ack(0, multiple=True)
    office.client.machine.discard_output()
    office.publish(queue, published)
    office.workers.turn()


def test_a_backlog_that_does_not_grow_holds_nobody() -> None:
    """However long a queue is: publishers that add as much as is taken do not wait."""
    office = Office(1)
    queue = office.queue("q", 5 * SHARE_ENTRIES, prefetch=PREFETCH)
    office.workers.turn()
    for _ in range(20):
        take(office, queue, PREFETCH)
        assert not queue.lags


def test_publishers_wait_until_a_backlog_is_as_short_as_it_was() -> None:
    """A queue that grows by more than a share is awaited until it has shrunk again, and may be shorter by then."""
    office = Office(1)
    queue = office.queue("q", 5 * SHARE_ENTRIES, prefetch=PREFETCH)
    office.workers.turn()
    shortest = queue.ready
    take(office, queue, SHARE_ENTRIES + PREFETCH)
    assert queue.ready == shortest + SHARE_ENTRIES
    assert not queue.lags
    take(office, queue, PREFETCH + 1)
    assert queue.lags
    assert office.awaited.lagging == {queue}
    take(office, queue, 0)
    assert not queue.lags
    assert not office.awaited.lagging
    for _ in range(3):
        take(office, queue, 0)
    shortest = queue.ready
    take(office, queue, SHARE_ENTRIES + PREFETCH + 1)
    assert queue.ready == shortest + SHARE_ENTRIES + 1
    assert queue.lags


def test_queues_that_grow_together_share_what_they_may_grow_by() -> None:
    """All of them together may grow by one share, so that many queues do not wait for much."""
    office = Office(1)
    queues = [office.queue(name, PREFETCH + 1, prefetch=PREFETCH) for name in "ab"]
    office.workers.turn()
    for queue in queues:
        office.publish(queue, SHARE_ENTRIES // 2)
    take(office, queues[0], PREFETCH)
    assert [queue.lags for queue in queues] == [False, False]
    take(office, queues[0], PREFETCH + 1)
    assert [queue.lags for queue in queues] == [True, False]


def test_slow_consumers_are_not_awaited() -> None:
    """Publishers never wait for the acks of a consumer that takes less in a turn, or in the time of a wait."""
    office = Office(1)
    slow = office.queue("slow", 2 * BUSY_MESSAGES, prefetch=BUSY_MESSAGES - 1)
    office.workers.turn()
    assert slow.unacked == BUSY_MESSAGES - 1
    take(office, slow, 2 * SHARE_ENTRIES)
    assert slow.unacked == BUSY_MESSAGES - 1
    assert not slow.lags
    slower = office.queue("slower", 3 * BUSY_MESSAGES, prefetch=BUSY_MESSAGES)
    office.workers.turn()
    take(office, slower, 2 * SHARE_ENTRIES)
    assert slower.lags
    end_wait(office)
    assert slower.lags  # it took as many again
    end_wait(office)
    assert not slower.lags


def test_a_backlog_on_disk_holds_publishers_only_while_much_is_read_back() -> None:
    """A read from disk is awaited after many deliveries; an old backlog that is read slowly slows no one down."""
    office = Office(1)
    office.reader.read = lambda _stream, _slot, _then: None
    queue = office.queue("q", 2 * BUSY_MESSAGES)
    for slot in list(queue.level.manager.slots.values())[3:-1]:
        slot.contents = None  # hot: set directly
    office.workers.turn()
    assert queue.ready
    office.publish(queue, SHARE_ENTRIES + 1)
    office.workers.turn()
    assert queue.lags
    end_wait(office)
    assert not queue.lags
    queue.wake()
    office.workers.turn()
    assert not queue.lags
