"""Publishing: checks, copies, one record for all queues, acks and nacks in order."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pamqp import commands

from broker.core.session.channel import SessionOfChannel
from tests.stored_record import decode_message
from tests.unit.core.room import Client, Room
from tests.unit.core.session.publishing import confirms, declare, publish, ready

USER = "user_id property set to 'alice' but authenticated user was 'guest'"


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"user_id": "alice", "expiration": "soon"}, USER),
        ({"reply_to": "amq.rabbitmq.reply-to"}, "fast reply consumer does not exist"),
        ({"reply_to": "amq.rabbitmq.reply-to", "user_id": "alice"}, "fast reply consumer does not exist"),
    ],
)
def test_properties_that_are_refused(properties: dict[str, Any], text: str, room: Room, client: Client) -> None:
    """Of several faults the first that RabbitMQ checks closes the channel, and nothing is published."""
    declare(client, "q")
    assert publish(client, "q", **properties) == [f"channel 406 PRECONDITION_FAILED - {text}"]
    assert ready(room, "q") == [0]


# -- routing -----------------------------------------------------------------------------------------------------------


def test_copies_may_be_all_that_is_routable(client: Client) -> None:
    """A mandatory message that is routable only by a CC key is not returned."""
    declare(client, "b")
    assert publish(client, "nobody", mandatory=True, headers={"CC": ["b"]}) == []
    assert publish(client, "nobody", mandatory=True, headers={"CC": ["nobody2"]}) == ["Basic.Return"]


def test_copies_do_not_stay_in_the_cache(room: Room, client: Client) -> None:
    """CC routes are not cached: the same publish without CC goes to its own key alone."""
    declare(client, "a", "b")
    for _ in range(3):
        publish(client, "a", headers={"CC": ["b"]})
        publish(client, "a")
    assert ready(room, "a", "b") == [6, 3]


def test_every_publishing_connection_is_known(room: Room) -> None:
    """An alarm blocks each connection that has published, also on a route that another connection cached."""
    first, second = room.enter(), room.enter()
    declare(first, "q")
    for _ in range(3):
        publish(first, "q")
    assert (first.session.publishing, second.session.publishing) == (True, False)
    publish(second, "q")
    assert second.session.publishing
    assert ready(room, "q") == [4]


def test_an_ended_route_does_not_say_what_is_unroutable(client: Client) -> None:
    """A cached payload whose queue was unbound is resolved again."""
    declare(client, "q")
    client.call(1, commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="k"), commands.Queue.BindOk)
    for _ in range(3):
        publish(client, "k", exchange="amq.topic")
    publisher = cast("SessionOfChannel", client.machine.channels[1].session).publisher
    (payload,) = publisher.entries
    assert not publisher.is_unroutable(payload)
    client.call(1, commands.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="k"), commands.Queue.UnbindOk)
    assert publisher.is_unroutable(payload)


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"x_max_length": 10}], ids=["straight road", "slow road"])
def test_one_record_for_all_durable_queues(arguments: dict[str, Any], room: Room, client: Client) -> None:
    """A fan-out appends one record that names the durable queues; a transient message appends none."""
    declare(client, "a", **arguments)
    declare(client, "b")
    client.call(1, commands.Queue.Declare(queue="t"), commands.Queue.DeclareOk)
    for name in ("a", "b", "t"):
        client.call(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"), commands.Queue.BindOk)
    room.clock.now_ms = 777
    publish(client, "", exchange="amq.fanout", delivery_mode=2)
    publish(client, "", exchange="amq.fanout", delivery_mode=1)
    assert ready(room, "a", "b", "t") == [2, 2, 2]
    (record,) = room.records()
    stored = decode_message(0, record)
    assert len(stored.targets) == 2 * 16
    assert stored.timestamp_ms == 777


# -- confirms ----------------------------------------------------------------------------------------------------------


def test_nacks_stand_between_acks(room: Room) -> None:
    """A refused run of publishes gets one nack, and no ack passes over it."""
    client = room.confirming()
    declare(client, "full", x_max_length=1, x_overflow="reject-publish")
    for key in ("nobody", "full", "full", "nobody", "full", "full", "full", "nobody", "nobody"):
        assert publish(client, key) == []
    (publisher,) = room.committer.waiting
    publisher.confirm(publisher.published)
    assert confirms(client) == ["ack 2+", "nack 3", "ack 4", "nack 7+", "ack 9+"]
    assert ready(room, "full") == [1]


def test_nacks_wait_like_acks(room: Room) -> None:
    """A nack is sent only when every earlier number is safe, like an ack."""
    client = room.confirming()
    declare(client, "full", x_max_length=0, x_overflow="reject-publish")
    for key in ("nobody", "full", "nobody", "full"):
        publish(client, key)
    (publisher,) = room.committer.waiting
    told = []
    for upto in (1, 1, 2, 4):
        publisher.confirm(upto)
        told.append(confirms(client))
    assert told == [["ack 1"], [], ["nack 2"], ["ack 3", "nack 4"]]


def test_refusals_that_are_told_keep_no_memory(room: Room) -> None:
    """Once no nack is due, the publisher has no dict of them: an emptied one would keep its size."""
    client = room.confirming()
    declare(client, "full", x_max_length=0, x_overflow="reject-publish")
    told = []
    for _ in range(2):
        for _ in range(3):
            publish(client, "full")
        (publisher,) = room.committer.waiting
        publisher.confirm(publisher.published - 1)
        assert len(publisher._others) == 1
        publisher.confirm(publisher.published)
        assert publisher._others is None
        told += confirms(client)
    assert told == ["nack 2+", "nack 3", "nack 5+", "nack 6"]


def test_refusing_says_nothing_without_confirms(room: Room, client: Client) -> None:
    """A publisher without confirms gets no nack, not even later."""
    declare(client, "full", x_max_length=0, x_overflow="reject-publish")
    publish(client, "full")
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    publish(client, "nobody")
    (publisher,) = room.committer.waiting
    publisher.confirm(1)
    assert confirms(client) == ["ack 1"]


def test_who_waits_for_the_disk(room: Room) -> None:
    """A transient publish may be confirmed at once, a persistent one waits for the disk, on both publish paths."""
    client = room.confirming()
    declare(client, "q")
    declare(client, "ruled", x_max_length=100)
    waits = []
    for key in ("q", "ruled"):
        for mode in (1, 2):
            publish(client, key, delivery_mode=mode)
            (publisher,) = room.committer.waiting
            waits.append(publisher.logged == publisher.published)
    assert waits == [False, True, False, True]
