"""An operator's view of a running broker, and actions on one queue, exchange or connection."""

import base64
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.cli.control_client import Unanswered
from broker.routing.index import AUTO, CHOICES, ENGINES
from broker.server import BrokerServer
from tests.in_process import client_of, end_of, queue_of, running_broker, told

pytestmark = pytest.mark.usefixtures("quiet")

SMALL_SLOTS: Any = {"slots": {"window_messages": 4}, "memory": {"resident_max_bytes": 1 << 20}}


async def only(broker: BrokerServer, verb: str, **arguments: Any) -> Any:
    """Return the one row of a list."""
    (row,) = await told(broker, verb, **arguments)
    return row


async def test_queue_says_what_waits_and_what_is_out(tmp_path: Path) -> None:
    """A queue's row has its ready and unacknowledged messages, their sum, and its consumers."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", arguments={"x-max-priority": 2})
        for number in range(3):
            await channel.default_exchange.publish(aio_pika.Message(b"m", priority=number), "q")
        await queue.get()
        row = await only(broker, "list_queues")
        counts = {key: row[key] for key in ("messages_ready", "messages_unacknowledged", "messages", "consumers")}
        assert counts == {"messages_ready": 2, "messages_unacknowledged": 1, "messages": 3, "consumers": 0}
        assert row["arguments"] == {"x-max-priority": 2}
        assert (row["durable"], row["exclusive"], row["auto_delete"]) == (False, False, False)


async def test_single_active_consumer_is_told_from_those_that_wait(tmp_path: Path) -> None:
    """One consumer of a queue with a single active consumer is active, the others wait."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", arguments={"x-single-active-consumer": True})
        first = await queue.consume(ignore)
        await queue.consume(ignore)
        rows = await told(broker, "list_consumers")
        assert [(row["consumer_tag"] == first, row["active"]) for row in rows] == [(True, True), (False, False)]
        await queue.cancel(first)
        assert [row["active"] for row in await told(broker, "list_consumers")] == [True]


async def ignore(_message: Any) -> None:
    """Leave a message unacknowledged."""


async def test_connection_and_channel_say_whose_they_are(tmp_path: Path) -> None:
    """The rows name user, vhost, the address of both ends, and the unacknowledged messages of the channel."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.set_qos(7)
        queue = await channel.declare_queue("q")
        await channel.default_exchange.publish(aio_pika.Message(b"m"), "q")
        await queue.get()
        connection = await only(broker, "list_connections")
        assert (connection["user"], connection["vhost"], connection["state"]) == ("guest", "/", "running")
        assert (connection["port"], connection["channels"]) == (broker.listener.port, 1)
        assert connection["name"] == f"127.0.0.1:{connection['peer_port']} -> 127.0.0.1:{broker.listener.port}"
        row = await only(broker, "list_channels")
        assert (row["connection"], row["messages_unacknowledged"]) == (connection["name"], 1)
        assert (row["prefetch_count"], row["confirm"], row["transactional"]) == (7, True, False)


async def test_connection_has_the_name_that_its_client_gave_it(tmp_path: Path) -> None:
    """The connection name of the client is listed if it is a text."""
    async with running_broker(tmp_path) as broker:
        url = f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/"
        given: Any
        for given, listed in (({"connection_name": "shop"}, "shop"), ({}, None), ({"connection_name": 7}, None)):
            connection = await aio_pika.connect(url, client_properties=given)
            assert (await only(broker, "list_connections"))["connection_name"] == listed
            await connection.close()


async def test_lists_can_be_of_one_vhost(tmp_path: Path) -> None:
    """A list of a missing vhost is refused instead of being empty."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        await told(broker, "add_vhost", name="v")
        assert await told(broker, "list_queues", vhost="v") == []
        assert await told(broker, "list_connections", vhost="v") == []
        assert len(await told(broker, "list_queues")) == 1
        for kind in ("queues", "connections", "permissions", "topic_permissions", "policies"):
            with pytest.raises(Unanswered, match="no vhost 'w'"):
                await told(broker, f"list_{kind}", vhost="w")


async def test_binding_of_each_queue_to_the_default_exchange_is_listed(tmp_path: Path) -> None:
    """Bindings are listed as rabbitmqctl lists them, including those between exchanges."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        source = await channel.declare_exchange("x")
        destination = await channel.declare_exchange("y")
        await destination.bind(source, "k")
        rows = await told(broker, "list_bindings")
        ends = [(row["source"], row["destination_type"], row["destination"], row["routing_key"]) for row in rows]
        assert ends == [("", "queue", "q", "q"), ("x", "exchange", "y", "k")]


@pytest.mark.parametrize("dialect", ["amqp", "mqtt"])
async def test_topic_exchanges_say_which_index_they_have(tmp_path: Path, dialect: str) -> None:
    """A topic exchange shows the index that its arguments or the settings chose; other exchanges have none."""
    async with running_broker(tmp_path, routing={"topic_index": "trie"}) as broker, client_of(broker) as channel:
        for choice in CHOICES:
            arguments = {"x-topic-dialect": dialect, "x-topic-index": choice}
            exchange = await channel.declare_exchange(choice, "topic", arguments=arguments)
            queue = await channel.declare_queue(choice)
            await queue.bind(exchange, "a.*" if dialect == "amqp" else "a/+")
            await exchange.publish(aio_pika.Message(b"m"), "a.b" if dialect == "amqp" else "a/b")
            assert (await queue.get()).body == b"m"
        await channel.declare_exchange("as-set", "topic", arguments={"x-topic-dialect": dialect})
        await channel.declare_exchange("direct", "direct", arguments={"x-topic-index": "means nothing here"})
        listed = {row["name"]: row["topic_index"] for row in await told(broker, "list_exchanges")}
        assert {choice: listed[choice] for choice in CHOICES if choice != AUTO} == {
            choice: choice for choice in CHOICES if choice != AUTO
        }
        assert listed[AUTO] in ENGINES
        assert (listed["as-set"], listed["amq.topic"], listed["direct"]) == ("trie", "trie", None)


async def test_peek_leaves_everything_as_it_is(tmp_path: Path) -> None:
    """Peeked messages are delivered to the next consumer in order, and do not count as delivered."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        bodies = [b"text", "é".encode(), b"\xff\x00"]
        for body in bodies:
            message = aio_pika.Message(body, headers={"n": 1}, message_id="i", delivery_mode=2)
            await channel.default_exchange.publish(message, "q")
        seen = await told(broker, "peek", queue="q", count=10)
        assert [(row["body"], row["body_encoding"]) for row in seen] == [
            ("text", "utf-8"), ("é", "utf-8"), (base64.b64encode(b"\xff\x00").decode(), "base64"),
        ]  # fmt: skip
        assert seen[0]["properties"] == {"headers": {"n": 1}, "delivery_mode": 2, "message_id": "i", "priority": 0}
        assert not any(row["redelivered"] for row in seen)
        for body in bodies:
            message = await queue.get(no_ack=True)
            assert (message.body, message.redelivered) == (body, False)


async def test_peek_shows_what_comes_next_first(tmp_path: Path) -> None:
    """Peek shows the highest priority first, omits unacked messages, and includes requeued ones."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", arguments={"x-max-priority": 5})
        for number in (1, 5, 5):
            await channel.default_exchange.publish(aio_pika.Message(str(number).encode(), priority=number), "q")
        held = await queue.get()
        assert [row["body"] for row in await told(broker, "peek", queue="q", count=9)] == ["5", "1"]
        await held.nack()
        again = await told(broker, "peek", queue="q", count=9)
        assert [(row["body"], row["redelivered"]) for row in again] == [("5", True), ("5", False), ("1", False)]


async def test_peek_reads_from_disk_and_brings_nothing_into_memory(tmp_path: Path) -> None:
    """Messages that recovery left on disk are shown, and stay on disk."""
    async with running_broker(tmp_path, **SMALL_SLOTS) as broker, client_of(broker) as channel:
        await channel.declare_queue("q", durable=True)
        for number in range(10):
            await channel.default_exchange.publish(aio_pika.Message(str(number).encode(), delivery_mode=2), "q")
    async with running_broker(tmp_path, **SMALL_SLOTS) as broker:
        seen = await told(broker, "peek", queue="q", count=9)
        assert [row["body"] for row in seen] == [str(number) for number in range(9)]
        _head, *others = queue_of(broker, "q").level.manager.slots.values()  # its head is read to check its expiration
        assert [slot.resident for slot in others if slot.length] == [False, False]


async def test_long_body_is_cut_between_letters(tmp_path: Path) -> None:
    """A body is cut at the requested size between characters, with a note that it is incomplete."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        await channel.default_exchange.publish(aio_pika.Message("aéé".encode()), "q")
        row = await only(broker, "peek", queue="q", body_bytes=4)
        assert (row["body"], row["body_bytes"], row["body_complete"]) == ("aé", 5, False)


async def test_purge_and_delete_say_how_many(tmp_path: Path) -> None:
    """The counts are those of ready messages; unacked ones stay until the queue is deleted."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        for _ in range(3):
            await channel.default_exchange.publish(aio_pika.Message(b"m", delivery_mode=2), "q")
        await queue.get()
        assert await told(broker, "purge_queue", queue="q") == {"messages": 2}
        assert (await only(broker, "list_queues"))["messages"] == 1
        await channel.default_exchange.publish(aio_pika.Message(b"m"), "q")
        with pytest.raises(Unanswered, match=r"^PRECONDITION_FAILED - queue 'q' in vhost '/' not empty$"):
            await told(broker, "delete_queue", queue="q", if_empty=True)
        assert await told(broker, "delete_queue", queue="q") == {"messages": 1}
        for verb in ("purge_queue", "delete_queue", "peek"):
            with pytest.raises(Unanswered, match=r"^no queue 'q' in vhost '/'$"):
                await told(broker, verb, queue="q")


async def test_deleting_an_exchange_has_the_rules_of_a_client(tmp_path: Path) -> None:
    """A predeclared exchange stays, and so does a used one with if-unused."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        exchange = await channel.declare_exchange("x")
        await (await channel.declare_queue("q")).bind(exchange, "k")
        with pytest.raises(Unanswered, match=r"ACCESS_REFUSED - deletion of system exchange 'amq\.topic'"):
            await told(broker, "delete_exchange", exchange="amq.topic")
        with pytest.raises(Unanswered, match="PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"):
            await told(broker, "delete_exchange", exchange="x", if_unused=True)
        await told(broker, "delete_exchange", exchange="x")
        with pytest.raises(Unanswered, match="no exchange 'x' in vhost '/'"):
            await told(broker, "delete_exchange", exchange="x")


async def test_closed_connection_is_told_why(tmp_path: Path) -> None:
    """Only the named connection is closed, with the operator's reason."""
    async with running_broker(tmp_path) as broker, client_of(broker) as other:
        before = {row["name"] for row in await told(broker, "list_connections")}
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/")
        (name,) = {row["name"] for row in await told(broker, "list_connections")} - before
        closed = end_of(connection)
        await told(broker, "close_connection", name=name, reason="maintenance")
        assert str(await closed).endswith("CONNECTION_FORCED - maintenance")
        await other.declare_queue("still", exclusive=True)
        with pytest.raises(Unanswered, match="no connection 'nobody'"):
            await told(broker, "close_connection", name="nobody")


async def test_status_sums_up_all_vhosts(tmp_path: Path) -> None:
    """Status sums up all vhosts, and health only reports that the broker answers."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        await channel.default_exchange.publish(aio_pika.Message(b"m"), "q")
        await told(broker, "add_vhost", name="v")
        status = await told(broker, "status")
        counts = {key: status[key] for key in ("vhosts", "queues", "ready", "unacked", "connections", "alarms")}
        assert counts == {"vhosts": 2, "queues": 1, "ready": 1, "unacked": 0, "connections": 1, "alarms": []}
        assert await told(broker, "health") is None


async def test_slots_of_a_queue_meet(tmp_path: Path) -> None:
    """Each slot is a row; the ids of neighbouring rows are contiguous, and the open slot is last."""
    async with running_broker(tmp_path, **SMALL_SLOTS) as broker, client_of(broker) as channel:
        await channel.declare_queue("q")
        for _ in range(9):
            await channel.default_exchange.publish(aio_pika.Message(b"m"), "q")
        answer = await told(broker, "slots", queue="q")
        rows = [(row["first"], row["end"], row["state"]) for row in answer["slots"]]
        assert rows == [(1, 5, "sealed"), (5, 9, "sealed"), (9, 10, "open")]
        assert (answer["slot_count"], answer["ready"], answer["levels"]) == (3, 9, 1)
