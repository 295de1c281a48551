"""The keeper: expiry, drop-head and delays, with clients on different nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes, rows
from tests.deadline import PAUSE_S, wait_until
from tools.postgres_server import PostgresServer

PERSISTENT = pika.BasicProperties(delivery_mode=2)
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def declare(channel: BlockingChannel, name: str, **arguments: Any) -> None:
    """Declare a durable queue."""
    channel.queue_declare(name, durable=True, arguments=arguments)


def count(channel: BlockingChannel, name: str) -> int:
    """Return how many messages are ready in a queue."""
    found: int = channel.queue_declare(name, passive=True).method.message_count
    return found


def taken(channel: BlockingChannel, name: str) -> list[tuple[bytes, Any]]:
    """Fetch all messages of a queue with their headers."""
    found: list[tuple[bytes, Any]] = []
    while True:
        frame, properties, body = channel.basic_get(name, auto_ack=True)
        if frame is None:
            return found
        found.append((body, properties.headers))


def test_free_messages_expire_on_any_node_and_are_dead_lettered(nodes: Nodes) -> None:
    """Messages without a consumer expire by their own time or the queue's, and arrive dead-lettered once, in order."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b")
    declare(a, "dead")
    declare(a, "brief", **DEAD, **{"x-message-ttl": 200})
    declare(a, "mixed", **DEAD)
    for number in range(300):
        a.basic_publish("", "brief", str(number).encode(), PERSISTENT)
    wait_until(lambda: count(b, "dead") == 300, "the keeper")
    assert count(b, "brief") == 0
    found = taken(b, "dead")
    assert [body for body, _ in found] == [str(number).encode() for number in range(300)]
    assert {headers["x-death"][0]["reason"] for _, headers in found} == {"expired"}
    for number, expiration in enumerate((None, "60000", "100", None, "150")):
        a.basic_publish("", "mixed", str(number).encode(), pika.BasicProperties(delivery_mode=2, expiration=expiration))
    wait_until(lambda: count(b, "dead") == 2, "the keeper")
    assert [body for body, _ in taken(b, "mixed")] == [b"0", b"1", b"3"]


def test_messages_that_are_too_many_leave_from_the_head(nodes: Nodes, shared_postgres: PostgresServer) -> None:
    """A queue with drop-head keeps the newest messages, whichever node they come from; the others are dead-lettered."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b", confirms=True)
    declare(a, "dead")
    declare(a, "short", **DEAD, **{"x-max-length": 5})
    for number in range(50):
        (a if number % 2 else b).basic_publish("", "short", str(number).encode(), PERSISTENT)
    wait_until(lambda: count(b, "short") == 5 and count(b, "dead") == 45, "the keeper")
    found = taken(b, "dead")
    assert [body for body, _ in found] == [str(number).encode() for number in range(45)]
    assert {headers["x-death"][0]["reason"] for _, headers in found} == {"maxlen"}
    assert [body for body, _ in taken(a, "short")] == [str(number).encode() for number in range(45, 50)]
    wait_until(lambda: rows(shared_postgres, nodes.schema) == 0, "the keeper")


def test_delayed_messages_are_routed_once_when_they_are_due(nodes: Nodes) -> None:
    """Messages of a delayed exchange come in the order of their moments, though the node that held them is dead."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b")
    a.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
    declare(a, "q")
    b.queue_bind("q", "later", "#")
    for delay_ms in (1500, 300, 900, 600):
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay_ms})
        a.basic_publish("later", "k", str(delay_ms).encode(), properties)
    assert count(b, "q") == 0
    nodes.by_name["a"].kill()
    wait_until(lambda: count(b, "q") == 4, "the keeper")
    assert [body for body, _ in taken(b, "q")] == [b"300", b"600", b"900", b"1500"]


def test_keeper_that_dies_is_replaced(nodes: Nodes) -> None:
    """After the death of the node that kept a level the other one drops what expires."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b", confirms=True)
    declare(a, "dead")
    declare(a, "brief", **DEAD, **{"x-message-ttl": 300})
    a.basic_publish("", "brief", b"first", PERSISTENT)
    wait_until(lambda: count(b, "dead") == 1, "the keeper")
    a.basic_publish("", "brief", b"second", PERSISTENT)
    nodes.by_name["a"].kill()
    wait_until(lambda: count(b, "dead") == 2, "the keeper")
    assert [body for body, _ in taken(b, "dead")] == [b"first", b"second"]


def test_message_that_comes_back_too_often_is_dead_lettered(nodes: Nodes) -> None:
    """Deliveries are counted over all nodes."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b")
    declare(a, "dead")
    declare(a, "worn", **DEAD, **{"x-queue-type": "quorum", "x-delivery-limit": 3})
    a.basic_publish("", "worn", b"m", PERSISTENT)
    deliveries = 0
    while not count(b, "dead"):
        channel = (a, b)[deliveries % 2]
        frame, _, _ = channel.basic_get("worn")  # empty for as long as the other node has the message
        if frame is not None:
            deliveries += 1
            channel.basic_reject(frame.delivery_tag)
    assert deliveries == 4
    ((_, headers),) = taken(b, "dead")
    assert headers["x-death"][0]["reason"] == "delivery_limit"


def test_a_poisoned_message_is_kept_by_the_node_that_had_it(nodes: Nodes) -> None:
    """Its queue is made on all nodes first, and the message goes there with its story."""
    a, b = nodes.channel("a", confirms=True), nodes.channel("b")
    ask(nodes.by_name["a"].folder, "set_policy", name="k", pattern="^worn$", definition={"keep-poisoned": True})
    declare(a, "worn", **{"x-queue-type": "quorum", "x-delivery-limit": 0})
    for _ in range(2):
        a.basic_publish("", "worn", b"m", pika.BasicProperties(priority=9))
        frame, _, _ = b.basic_get("worn")
        assert frame is not None
        b.basic_reject(frame.delivery_tag)
    found: list[tuple[bytes, Any]] = []

    def all_found() -> bool:
        found.extend(poisoned(a))
        return len(found) == 2

    wait_until(all_found, "the poisoned messages")
    assert [(body, headers["x-death"][0]["reason"]) for body, headers in found] == [(b"m", "delivery_limit")] * 2
    assert count(b, "worn") == 0
    ask(nodes.by_name["a"].folder, "delete_policy", name="k")


def poisoned(channel: BlockingChannel) -> list[tuple[bytes, Any]]:
    """Fetch what is in the queue of poisoned messages, nothing while there is none."""
    other = channel.connection.channel()
    try:
        return taken(other, "worn.poisoned")
    except pika.exceptions.ChannelClosedByBroker:
        return []


def test_queue_expires_when_no_node_uses_it(nodes: Nodes) -> None:
    """Gets on one node keep a queue whose timer runs on both; without them it goes from both."""
    a, b = nodes.channel("a"), nodes.channel("b")
    declare(a, "busy", **{"x-expires": 1500})

    def only_busy() -> bool:
        b.basic_get("busy", auto_ack=True)
        return [row["name"] for row in ask(nodes.by_name["a"].folder, "list_queues")] == ["busy"]

    for _ in range(2):  # the time of an idle queue is that of the busy one
        declare(a, "idle", **{"x-expires": 1500})
        wait_until(only_busy, "the end of the idle queue")
    folders = [node.folder for node in nodes.by_name.values()]
    wait_until(lambda: [ask(folder, "list_queues") for folder in folders] == [[], []], "the end of the other queue")


@pytest.mark.parametrize("kind", ["expired", "delayed"])
def test_what_the_keeper_moves_is_delivered_after_its_commit(
    nodes: Nodes, shared_postgres: PostgresServer, postgres_url: str, kind: str
) -> None:
    """A node that fails before the commit delivers nothing that another node delivers again, unmarked."""
    channel = nodes.channel("a", confirms=True)
    declare(channel, "target")
    channel.basic_publish("", "target", b"first", PERSISTENT)
    target = shared_postgres.sql(f'SELECT level FROM "{nodes.schema}".slot ORDER BY number DESC LIMIT 1')
    if kind == "expired":
        declare(
            channel,
            "short",
            **{"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"},
        )
    else:
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        channel.queue_bind("target", "later", "short")
    consumers = [nodes.channel(name) for name in ("a", "b")]  # one of the nodes is the keeper
    got: list[bytes] = []
    for consumer in consumers:
        consumer.basic_consume("target", lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)

    def received() -> int:
        for consumer in consumers:
            consumer.basic_qos(prefetch_count=9)  # its answer follows what was delivered before
            consumer.connection.process_data_events(0)
        return len(got)

    wait_until(lambda: received() == 1, "the first message")
    publisher = nodes.channel("a")  # without confirms: a commit that waits holds those of its node up
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 1})

    async def hold_the_commit() -> None:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(f"""
            CREATE FUNCTION "{nodes.schema}".stop_here() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NEW; END $$;
            CREATE TRIGGER stop_here BEFORE INSERT ON "{nodes.schema}".slot FOR EACH ROW WHEN (NEW.level = {target})
            EXECUTE FUNCTION "{nodes.schema}".stop_here();
            SELECT pg_advisory_lock(42)
        """)
        try:
            for number in range(5):
                publisher.basic_publish("" if kind == "expired" else "later", "short", b"%d" % number, properties)
            while not await connection.fetchval(  # noqa: ASYNC110 - PostgreSQL does not tell when a call waits
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%commit(%'"
            ):
                await asyncio.sleep(PAUSE_S)
            assert received() == 1
        finally:
            await connection.execute(f'SELECT pg_advisory_unlock(42); DROP FUNCTION "{nodes.schema}".stop_here CASCADE')
            await connection.close()

    asyncio.run(hold_the_commit())
    wait_until(lambda: received() == 6, "the messages")
