"""Queues whose consumers will soon have room again: their publishers wait a moment, and others do not."""

from __future__ import annotations

import pytest

from broker.core.publish_credit import SHARE_ENTRIES
from broker.core.queue.queue import Queue
from broker.delivery.awaited_queues import BRISK_MESSAGES, PATIENCE_MS
from tests.raw_client import publish_frames
from tests.unit.core.room import Client
from tests.unit.delivery.test_worker import Office

PREFETCH = 1000
MESSAGES = 30_000


def flood(office: Office, queue: Queue) -> Client:
    """Return a publisher that has sent many messages for a queue; the machine goes on with them when it is fed."""
    publisher = office.room.enter()
    publisher.machine.feed(publish_frames(1, "", queue.name, b"x" * 16) * MESSAGES)
    return publisher


def end_wait(office: Office) -> None:
    """Let the time pass that publishers wait at most."""
    office.room.clock.now_ms += PATIENCE_MS
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
    assert most <= SHARE_ENTRIES + PREFETCH


def test_a_publisher_waits_only_a_moment_for_consumers_that_do_not_ack() -> None:
    """After that each turn brings a whole share, as long as the consumers have no room."""
    office = Office(1)
    queue = office.queue("q", prefetch=PREFETCH)
    publisher = flood(office, queue)
    for _ in range(3):
        office.workers.turn()
        publisher.machine.feed(b"")
    waiting = queue.ready
    assert queue.lags
    assert waiting < 2 * SHARE_ENTRIES
    end_wait(office)
    assert not queue.lags
    for turns in range(1, 4):
        office.workers.turn()
        publisher.machine.feed(b"")
        assert queue.ready == waiting + turns * SHARE_ENTRIES


def test_slow_consumers_are_not_awaited() -> None:
    """Publishers never wait for the acks of a consumer that takes less in a turn, or in the time of a wait."""
    office = Office(1)
    slow = office.queue("slow", 2 * BRISK_MESSAGES, prefetch=BRISK_MESSAGES - 1)
    office.workers.turn()
    assert slow.unacked == BRISK_MESSAGES - 1
    assert not slow.lags
    slower = office.queue("slower", 3 * BRISK_MESSAGES, prefetch=BRISK_MESSAGES)
    office.workers.turn()
    assert slower.lags
    office.client.basic().ack(0, multiple=True)
    office.workers.turn()
    end_wait(office)
    assert slower.lags  # it took as many again
    end_wait(office)
    assert not slower.lags


def test_a_backlog_on_disk_holds_publishers_only_while_much_is_read_back() -> None:
    """A read from disk is awaited after many deliveries; an old backlog that is read slowly slows nobody down."""
    office = Office(1)
    office.reader.read = lambda _stream, _slot, _then: None
    queue = office.queue("q", 2 * BRISK_MESSAGES)
    for slot in list(queue.stream.manager.slots.values())[3:]:
        slot.contents = None  # hot: written here
    office.workers.turn()
    assert queue.ready
    assert queue.lags
    end_wait(office)
    assert not queue.lags
    queue.wake()
    office.workers.turn()
    assert not queue.lags
