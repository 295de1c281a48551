"""The consumer timeout: since when a delivery waits, however many of them wait."""

from __future__ import annotations

from broker.core.session.basic import MARKS_MAX
from tests.unit.core.room import Room, put

INTERVAL_MS = 1000


def test_the_oldest_of_very_many_deliveries_is_overdue_at_its_moment(room: Room) -> None:
    """A delivery in each interval makes more moments than are kept: the oldest one is known exactly, and each of the
    others is late by a few intervals at most, never early.
    """
    basic = room.enter().basic()
    queue = room.vhost.queues.declare("q")
    stream = queue.level
    count = 2 * MARKS_MAX
    put(queue, count)
    timeout_ms = count * INTERVAL_MS
    now_ms = 0
    most = 0
    for at in range(count):
        now_ms = at * INTERVAL_MS
        slot = stream.manager.get(queue.worker.owner)
        assert slot is not None
        (index,) = stream.manager.take(slot, 1)
        assert basic.unacked.add(stream, slot, index) == at + 1
        assert not basic.overdue(now_ms, timeout_ms)
        most = max(most, len(basic._marks))
    assert most == MARKS_MAX
    since_ms = [basic.held_since_ms(tag) or 0 for tag in range(1, count + 1)]
    late = [(since - at * INTERVAL_MS) // INTERVAL_MS for at, since in enumerate(since_ms)]
    assert late[0] == late[-1] == 0
    assert min(late) == 0
    assert max(late) <= 3  # of the marks, every second one went twice
    assert basic.overdue(timeout_ms, timeout_ms)
    basic.settle(basic.unacked.take(10, multiple=True))
    assert not basic.overdue(timeout_ms, timeout_ms)
    assert basic.overdue(since_ms[10] + timeout_ms, timeout_ms)
