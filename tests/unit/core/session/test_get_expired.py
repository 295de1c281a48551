"""basic.get on a queue whose head holds more expired messages than one turn drops."""

from __future__ import annotations

from pamqp import commands

from broker.core.deadlines import TURN_SHARE
from broker.core.queue.queue import Queue
from tests.unit.core.room import Client, Room, put

GET = commands.Basic.Get(queue="q")


def expired(room: Room, count: int) -> Queue:
    """Return a queue with this many expired messages at its head, none of them dropped yet."""
    queue = room.vhost.queues.declare("q", arguments={"x-message-ttl": 10})
    put(queue, count)
    room.clock.now_ms = 11
    return queue


def answers(client: Client) -> list[str]:
    """Return the names of the methods in the output."""
    return [method.name for _, method in client.replies()]


def test_a_get_waits_until_what_has_expired_is_gone() -> None:
    """The answer waits for the turn in which the last expired message is dropped, and returns no expired message."""
    room = Room()
    client = room.enter()
    queue = expired(room, TURN_SHARE + 100)
    assert client.tell(1, GET) == []
    assert 0 < queue.ready <= 100
    assert client.tell(1, commands.Basic.Qos(prefetch_count=1)) == [], "nothing overtakes the answer"
    room.turn()
    assert answers(client) == ["Basic.GetEmpty"]
    assert queue.ready == 0


def test_a_get_that_waits_ends_with_its_queue() -> None:
    """A basic.get that waits is answered with get-empty when its queue is deleted."""
    room = Room()
    client = room.enter()
    expired(room, TURN_SHARE + 100)
    assert client.tell(1, GET) == []
    room.vhost.queues.delete("q", None)
    room.turn()
    assert answers(client) == ["Basic.GetEmpty"]
