"""basic.get on a queue at whose head more has expired than one turn drops."""

from __future__ import annotations

from pamqp import commands

from broker.core.deadlines import TURN_SHARE
from broker.core.queue.queue import Queue
from tests.unit.core.room import Client, Room, put

GET = commands.Basic.Get(queue="q")


def expired(room: Room, count: int) -> Queue:
    """Return a queue at whose head so many messages have expired behind everybody's back."""
    queue = room.vhost.queues.declare("q", arguments={"x-message-ttl": 10})
    put(queue, count)
    room.clock.now_ms = 11
    return queue


def next_turn(room: Room) -> None:
    """Let what waited for the next turn go on."""
    room.deadlines.begin_turn()
    room.deadlines.run(room.clock.now_ms)


def answers(client: Client) -> list[str]:
    """Return the names of the methods that have come."""
    return [method.name for _, method in client.replies()]


def test_a_get_waits_until_what_has_expired_is_gone() -> None:
    """It returns nothing that has expired: the answer comes in the turn in which the rest was dropped."""
    room = Room()
    client = room.enter()
    queue = expired(room, TURN_SHARE + 100)
    assert client.tell(1, GET) == []
    assert 0 < queue.ready <= 100
    assert client.tell(1, commands.Basic.Qos(prefetch_count=1)) == [], "nothing overtakes the answer"
    next_turn(room)
    assert answers(client) == ["Basic.GetEmpty"]
    assert queue.ready == 0


def test_a_get_that_waits_ends_with_its_queue() -> None:
    """The queue was deleted meanwhile: there is nothing to get."""
    room = Room()
    client = room.enter()
    expired(room, TURN_SHARE + 100)
    assert client.tell(1, GET) == []
    room.vhost.queues.delete("q", None)
    next_turn(room)
    assert answers(client) == ["Basic.GetEmpty"]
