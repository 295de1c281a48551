"""Expiry: which messages are checked, a basic.get behind many expired ones, and the uses of a queue that expires."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from broker.amqp.header_facts import HeaderFacts
from broker.core.deadlines import TURN_SHARE
from broker.core.message.message import Envelope, Message
from broker.core.queue.head import expired_among
from broker.core.queue.queue import Queue as CoreQueue
from tests.unit.core.room import Client, Room, put

Basic, Queue = commands.Basic, commands.Queue


def message(expiration_ms: int | None) -> Message:
    """Return a message that was accepted at 100 ms."""
    facts = HeaderFacts(False, 0, expiration_ms)
    return Message(Envelope("x", "k"), b"header", b"body", 1, facts, 100)


CONTENTS = [message(None), message(5), None, message(50), message(1)]


@pytest.mark.parametrize(
    ("ttl_ms", "indexes", "asked", "expired"),
    [(None, range(5), [5, 50, 1], [1, 4]), (None, [0, 3], [50], []), (9, [0, 1, 2], [None, 5], [1])],
)
def test_what_never_expires_is_not_asked(
    ttl_ms: int | None, indexes: list[int], asked: list[int | None], expired: list[int]
) -> None:
    """A message without TTL and expiration costs no call; a message is kept at the very time it is due."""
    calls = []

    def expires_ms(one: Message) -> int | None:
        own_ms = one.facts.expiration_ms
        calls.append(own_ms)
        return 106 if own_ms is None else 100 + own_ms

    assert expired_among(CONTENTS, indexes, ttl_ms, expires_ms, 106) == expired
    assert calls == asked


EXPIRES_MS = 1000


def come_and_go(client: Client) -> None:
    """Consume and cancel."""
    consumer = client.consume("q")
    client.call(1, Basic.Cancel(consumer_tag=consumer.tag), Basic.CancelOk)


def consume_elsewhere(client: Client) -> None:
    """Consume on a channel that is closed."""
    client.open_channel(2)
    client.call(2, Basic.Consume(queue="q"), Basic.ConsumeOk)
    client.call(2, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)


USES: dict[str, Callable[[Client], object]] = {
    "get": lambda client: client.tell(1, Basic.Get(queue="q", no_ack=True)),
    "declare": lambda client: client.call(
        1, Queue.Declare(queue="q", arguments={"x-expires": EXPIRES_MS}), Queue.DeclareOk
    ),
    "passive declare": lambda client: client.call(1, Queue.Declare(queue="q", passive=True), Queue.DeclareOk),
    "consumer leaves": come_and_go,
    "channel of a consumer closes": consume_elsewhere,
}


@pytest.mark.parametrize("messages", [0, 5])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_queue_expires_after_its_last_use(
    use: Callable[[Client], object], messages: int, room: Room, client: Client
) -> None:
    """Each use postpones the end of a queue, whether it has messages or not; without one it ends to the millisecond."""
    queue = room.vhost.queues.declare("q", arguments={"x-expires": EXPIRES_MS})
    put(queue, messages)
    for _ in range(3):
        room.turn(EXPIRES_MS - 1)
        assert "q" in room.vhost.queues
        use(client)
    room.turn(EXPIRES_MS - 1)
    assert "q" in room.vhost.queues
    room.turn(1)
    assert "q" not in room.vhost.queues


def test_what_is_no_use_of_a_queue_postpones_nothing(room: Room, client: Client) -> None:
    """Publishing to a queue and purging it are no uses; a consumer is one as long as it stays."""
    room.vhost.queues.declare("q", arguments={"x-expires": EXPIRES_MS})
    consumer = client.consume("q")
    room.turn(5 * EXPIRES_MS)
    client.call(1, Basic.Cancel(consumer_tag=consumer.tag), Basic.CancelOk)
    room.turn(EXPIRES_MS - 1)
    client.publish("", "q", b"body")
    client.call(1, Queue.Purge(queue="q"), Queue.PurgeOk)
    assert "q" in room.vhost.queues
    room.turn(1)
    assert "q" not in room.vhost.queues


def expired(room: Room, count: int) -> CoreQueue:
    """Return a queue with this many expired messages at its head, none of them dropped yet."""
    queue = room.vhost.queues.declare("q", arguments={"x-message-ttl": 10})
    put(queue, count)
    room.clock.now_ms = 11
    return queue


def answers(client: Client) -> list[str]:
    """Return the names of the methods in the output."""
    return [method.name for _, method in client.replies()]


def test_a_get_waits_until_what_has_expired_is_gone(room: Room, client: Client) -> None:
    """The answer waits for the turn in which the last expired message is dropped, and returns no expired message."""
    queue = expired(room, TURN_SHARE + 100)
    assert client.tell(1, Basic.Get(queue="q")) == []
    assert 0 < queue.ready <= 100
    assert client.tell(1, Basic.Qos(prefetch_count=1)) == [], "nothing overtakes the answer"
    room.turn()
    assert answers(client) == ["Basic.GetEmpty"]
    assert queue.ready == 0


def test_a_get_that_waits_ends_with_its_queue(room: Room, client: Client) -> None:
    """A basic.get that waits is answered with get-empty when its queue is deleted."""
    expired(room, TURN_SHARE + 100)
    assert client.tell(1, Basic.Get(queue="q")) == []
    room.vhost.queues.delete("q", None)
    room.turn()
    assert answers(client) == ["Basic.GetEmpty"]
