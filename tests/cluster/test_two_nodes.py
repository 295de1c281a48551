"""Clients of two nodes that share their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

import asyncpg
import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S, PAUSE_S, wait_until
from tests.raw_client import RawClient, method_frame

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def fill(channel: BlockingChannel, queue: str, *bodies: bytes) -> None:
    """Publish persistent messages, each of which is confirmed if the channel is in confirm mode."""
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT)


def drain(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """Consume and ack this many messages."""
    found: list[bytes] = []
    for method, _properties, body in channel.consume(queue, inactivity_timeout=DEADLINE_S):
        assert method is not None, f"{len(found)} of {count} messages came"
        channel.basic_ack(method.delivery_tag)
        found.append(body)
        if len(found) == count:
            break
    channel.cancel()
    return found


def counts(channel: BlockingChannel, queue: str) -> tuple[int, int]:
    """Return how many ready messages and consumers a queue has."""
    answer = channel.queue_declare(queue, passive=True).method
    return answer.message_count, answer.consumer_count


@pytest.fixture
def statements(postgres_url: str, nodes: Nodes) -> Callable[[str], int]:
    """Provide a function that counts the calls of a function of the schema, and forgets them."""

    async def take(function: str) -> int:
        connection = await asyncpg.connect(postgres_url)
        try:
            counted = await connection.fetchval(
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE $1",
                f"SELECT * FROM {function}(%",
            )
            await connection.fetchval("SELECT pg_stat_statements_reset()")
        finally:
            await connection.close()
        return int(counted)

    return lambda function: asyncio.run(take(function))


def test_what_one_node_confirms_another_delivers(nodes: Nodes, name: str) -> None:
    """Persistent messages that are published on a with confirms are consumed on b, and their acks are settled."""
    bodies = [b"%d" % number for number in range(50)]
    publisher, consumer = nodes.channel("a", confirms=True), nodes.channel("b")
    publisher.queue_declare(name, durable=True)
    fill(publisher, name, *bodies)
    assert counts(consumer, name) == (50, 0)
    assert drain(consumer, name, 50) == bodies
    wait_until(lambda: [counts(channel, name) for channel in (publisher, consumer)] == [(0, 0)] * 2, "the acks")


def test_a_queue_that_is_paused_on_one_node_is_paused_on_all(nodes: Nodes, name: str) -> None:
    """Consumers and basic.get of b get nothing while the queue is paused on a, and messages that b had go back."""
    publisher, consumer = nodes.channel("a", confirms=True), nodes.channel("b")
    publisher.queue_declare(name, durable=True)
    received: list[bytes] = []
    consumer.basic_consume(name, lambda _channel, _method, _properties, body: received.append(body), auto_ack=True)
    ask(nodes.by_name["a"].folder, "pause_queue", queue=name)
    fill(publisher, name, b"first", b"second")
    for node in ("a", "b"):
        assert nodes.channel(node).basic_get(name) == (None, None, None)
        assert counts(nodes.channel(node), name)[0] == 2
    consumer.connection.process_data_events(0)
    assert not received
    ask(nodes.by_name["b"].folder, "resume_queue", queue=name)
    wait_until(lambda: consumer.connection.process_data_events(PAUSE_S) or len(received) == 2, "the messages")
    assert received == [b"first", b"second"]


def test_a_waiting_consumer_of_another_node_gets_a_message(nodes: Nodes, name: str) -> None:
    """A consumer that waits on b gets a message that is published on a, transient ones too."""
    publisher, consumer = nodes.channel("a"), nodes.channel("b")
    consumer.queue_declare(name, durable=True)
    messages = consumer.consume(name, inactivity_timeout=DEADLINE_S)
    for number in range(20):
        publisher.basic_publish("", name, b"%d" % number)
        method, _properties, body = next(messages)
        assert (method is not None, body) == (True, b"%d" % number)
        consumer.basic_ack(method.delivery_tag)


def test_get_purge_and_delete_see_the_whole_queue(nodes: Nodes, name: str) -> None:
    """basic.get fetches what another node committed; purge and delete count what no node has."""
    one, other = nodes.channel("a", confirms=True), nodes.channel("b")
    one.queue_declare(name, durable=True)
    assert other.basic_get(name)[0] is None
    fill(one, name, b"first", b"second", b"third")
    body = other.basic_get(name, auto_ack=True)[2]
    assert body == b"first"
    with pytest.raises(ChannelClosedByBroker, match="not empty"):
        nodes.channel("b").queue_delete(name, if_empty=True)
    assert other.queue_purge(name).method.message_count == 2
    assert one.basic_get(name)[0] is None
    fill(one, name, b"fourth")
    assert other.queue_delete(name).method.message_count == 1
    with pytest.raises(ChannelClosedByBroker, match="no queue"):
        one.queue_declare(name, passive=True)


def test_a_consumer_with_prefetch_1_holds_one_message(nodes: Nodes, name: str) -> None:
    """A slow consumer on a holds the message that it works on; a consumer on b gets all others."""
    bodies = [b"%d" % number for number in range(30)]
    slow, quick, publisher = nodes.channel("a"), nodes.channel("b"), nodes.channel("a", confirms=True)
    publisher.queue_declare(name, durable=True)
    slow.basic_qos(prefetch_count=1)
    work = slow.consume(name, inactivity_timeout=DEADLINE_S)
    fill(publisher, name, *bodies)
    method, _properties, held = next(work)
    assert method is not None
    assert sorted(drain(quick, name, 29)) == sorted(set(bodies) - {held})
    slow.basic_ack(method.delivery_tag)
    wait_until(lambda: counts(quick, name)[0] == 0, "the ack")


def test_a_requeued_message_goes_to_another_node(nodes: Nodes, name: str) -> None:
    """A message returned by a consumer of a is delivered on b, marked as redelivered."""
    one, other = nodes.channel("a"), nodes.channel("b")
    one.queue_declare(name, durable=True)
    fill(one, name, b"m")
    method, _properties, _body = next(one.consume(name, inactivity_timeout=DEADLINE_S))
    assert not method.redelivered
    one.connection.close()
    method, _properties, body = next(other.consume(name, inactivity_timeout=DEADLINE_S))
    assert (body, method.redelivered) == (b"m", True)


def test_recover_returns_to_the_consumer_or_to_another_node(nodes: Nodes, name: str) -> None:
    """basic.recover delivers again what a channel holds: to its consumer, or to another node once that has left."""
    one, other = nodes.channel("a"), nodes.channel("b", confirms=True)
    one.queue_declare(name, durable=True)
    bodies = [b"%d" % number for number in range(5)]
    fill(other, name, *bodies)
    got: list[tuple[bytes, bool]] = []
    tag = one.basic_consume(name, lambda _channel, method, _properties, body: got.append((body, method.redelivered)))

    def comes(count: int) -> None:
        def has_come() -> bool:
            one.connection.process_data_events(0.05)
            return len(got) >= count

        wait_until(has_come, f"{count} deliveries")

    comes(5)
    one.basic_recover(requeue=True)
    comes(10)
    assert got == [(body, False) for body in bodies] + [(body, True) for body in bodies]
    one.basic_cancel(tag)
    waiting = other.consume(name, inactivity_timeout=DEADLINE_S)
    one.basic_recover(requeue=True)
    again = [(body, method.redelivered) for method, _properties, body in islice(waiting, 5)]
    assert again == [(body, True) for body in bodies]
    assert counts(one, name)[0] == 0
    other.connection.close()
    assert [
        body for _method, _properties, body in islice(one.consume(name, inactivity_timeout=DEADLINE_S), 5)
    ] == bodies


def test_an_exclusive_consumer_is_alone_on_all_nodes(nodes: Nodes, name: str) -> None:
    """A second consumer is refused with 403 on every node, until the exclusive one has left."""
    one = nodes.channel("a")
    one.queue_declare(name, durable=True)
    tag = one.basic_consume(name, lambda *_: None, exclusive=True)
    with pytest.raises(ChannelClosedByBroker, match="in exclusive use"):
        nodes.channel("b").basic_consume(name, lambda *_: None)
    one.basic_cancel(tag)

    def admitted() -> bool:
        channel = nodes.channel("b")
        try:
            channel.basic_consume(name, lambda *_: None)
        except ChannelClosedByBroker:
            return False
        return True

    wait_until(admitted, "the consumer")
    with pytest.raises(ChannelClosedByBroker, match="in exclusive use"):
        nodes.channel("a").basic_consume(name, lambda *_: None, exclusive=True)


def test_a_consumer_that_has_left_does_not_count(nodes: Nodes, name: str) -> None:
    """A queue can be deleted as unused right after the cancel of its last consumer."""
    address = nodes.by_name["a"].address
    with RawClient(address.host, address.port).with_channel() as client:
        for _ in range(40):
            client.declare_queue(1, name, durable=True)
            consume = commands.Basic.Consume(queue=name, consumer_tag="user")
            client.call(1, consume, commands.Basic.ConsumeOk)
            cancel = method_frame(1, commands.Basic.Cancel(consumer_tag="user"))
            client.send(cancel, method_frame(1, commands.Queue.Delete(queue=name, if_unused=True)))
            client.expect(commands.Basic.CancelOk, 1)
            client.expect(commands.Queue.DeleteOk, 1)


def test_an_auto_delete_queue_goes_with_the_last_consumer_of_all_nodes(nodes: Nodes, name: str) -> None:
    """The queue stays while a consumer of another node is there."""
    one, other = nodes.channel("a"), nodes.channel("b")
    one.queue_declare(name, auto_delete=True)
    first, second = (channel.basic_consume(name, lambda *_: None) for channel in (one, other))
    one.basic_cancel(first)
    wait_until(lambda: counts(one, name) == (0, 1), "the removal of the first")
    other.basic_cancel(second)

    def gone() -> bool:
        try:
            nodes.channel("a").queue_declare(name, passive=True)
        except ChannelClosedByBroker:
            return True
        return False

    wait_until(gone, "the end of the queue")


def test_close_ok_comes_when_exclusive_queues_are_gone(nodes: Nodes, name: str) -> None:
    """A client that has closed its connection can declare its exclusive queues again at once, on any node."""
    for turn in range(20):
        connection = nodes.connect("ab"[turn % 2])
        channel = connection.channel()
        for queue in (name, name + "-other"):
            channel.queue_declare(queue, exclusive=True)
        connection.close()


def test_a_transaction_is_one_call(nodes: Nodes, name: str) -> None:
    """Publishes and acks of a transaction hold on the other node after commit-ok, and not before."""
    one, other = nodes.channel("a"), nodes.channel("b")
    for queue in (name, name + "-next"):
        one.queue_declare(queue, durable=True)
    fill(one, name, b"work")
    worker = nodes.channel("a")
    worker.tx_select()
    method, _properties, _body = next(worker.consume(name, inactivity_timeout=DEADLINE_S))
    worker.basic_publish("", name + "-next", b"result", PERSISTENT)
    worker.basic_ack(method.delivery_tag)
    assert counts(other, name + "-next")[0] == 0
    worker.tx_commit()
    assert counts(other, name + "-next")[0] == 1
    worker.connection.close()
    assert other.basic_get(name)[0] is None
    assert other.basic_get(name + "-next")[2] == b"result"


def test_a_transaction_into_a_full_queue_is_refused_as_a_whole(nodes: Nodes, name: str) -> None:
    """PostgreSQL counts what all nodes published: without room for all of it nothing is done, neither are the acks."""
    one, other = nodes.channel("a", confirms=True), nodes.channel("b")
    one.queue_declare(name, durable=True, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    for queue in (name + "-work", name + "-next"):
        other.queue_declare(queue, durable=True)
    fill(one, name, b"1", b"2")
    fill(one, name + "-work", b"work")
    other.tx_select()
    fill(other, name, b"3")
    other.tx_commit()
    method, _properties, _body = next(other.consume(name + "-work", inactivity_timeout=DEADLINE_S))
    other.basic_ack(method.delivery_tag)
    fill(other, name + "-next", b"lost")
    fill(other, name, b"4")
    with pytest.raises(ChannelClosedByBroker, match="partial tx completion"):
        other.tx_commit()
    assert counts(one, name)[0] == 3
    assert counts(one, name + "-next")[0] == 0
    wait_until(lambda: counts(one, name + "-work")[0] == 1, "the message that was acked in the transaction")
    assert one.basic_get(name + "-work")[0].redelivered


def test_a_single_active_consumer_is_single_on_all_nodes(nodes: Nodes, name: str) -> None:
    """The consumer that came first gets everything, and the one of the other node follows when it has left."""
    one, other = nodes.channel("a"), nodes.channel("b")
    one.queue_declare(name, durable=True, arguments={"x-single-active-consumer": True})
    first = one.consume(name, inactivity_timeout=DEADLINE_S)
    publisher = nodes.channel("b", confirms=True)
    fill(publisher, name, b"1")
    method, _properties, body = next(first)
    assert body == b"1"
    second = other.consume(name, inactivity_timeout=1)
    assert next(second)[0] is None
    fill(publisher, name, b"2", b"3")
    for expected in (b"2", b"3"):
        method, _properties, body = next(first)
        assert body == expected
    one.basic_ack(method.delivery_tag, multiple=True)
    one.connection.close()
    fill(publisher, name, b"4")
    bodies: list[bytes | None] = []

    def came() -> bool:
        bodies.append(next(second)[2])
        return bodies[-1] is not None

    wait_until(came, "the second consumer")
    assert bodies[-1] == b"4"


def test_priorities_hold_on_every_node(nodes: Nodes, name: str) -> None:
    """A queue with priorities gives the highest one first to a consumer of another node."""
    publisher = nodes.channel("a", confirms=True)
    publisher.queue_declare(name, durable=True, arguments={"x-max-priority": 3})
    for priority in (1, 3, 2):
        publisher.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    other = nodes.channel("b")
    assert counts(other, name)[0] == 3
    assert [other.basic_get(name, auto_ack=True)[2] for _ in range(3)] == [b"3", b"2", b"1"]


def test_declares_of_one_connection_are_counted_together(
    nodes: Nodes, statements: Callable[[str], int], name: str
) -> None:
    """New queues are empty, so no one asks; the counts of known queues are asked for together, and are right."""
    queues = [f"{name}.{number}" for number in range(20)]
    declares = [method_frame(1, commands.Queue.Declare(queue=queue, durable=True)) for queue in queues]
    address = nodes.by_name["a"].address
    with RawClient(address.host, address.port).with_channel() as client:
        statements("queue_counts")
        client.send(*declares)
        assert [client.expect(commands.Queue.DeclareOk).message_count for _ in queues] == [0] * 20
        assert statements("queue_counts") == 0
        publisher = nodes.channel("b", confirms=True)
        fill(publisher, queues[0], b"1")
        fill(publisher, queues[19], b"1", b"2")
        client.send(*declares)
        assert [client.expect(commands.Queue.DeclareOk).message_count for _ in queues] == [1] + [0] * 18 + [2]
        assert statements("queue_counts") <= 3


def test_a_deleted_queue_leaves_no_rows(nodes: Nodes, postgres_url: str, name: str) -> None:
    """Queues of all kinds, which clients of both nodes used up to the end: their rows are swept."""

    async def left() -> dict[str, int]:
        connection = await asyncpg.connect(postgres_url, server_settings={"search_path": nodes.schema})
        try:
            tables = ("slot", "level", "consumer", "keeper", "orphan", "queue_use", "dropped_level")
            return {one: rows for one in tables if (rows := await connection.fetchval(f"SELECT count(*) FROM {one}"))}
        finally:
            await connection.close()

    kinds = [
        {"x-expires": 600_000},
        {"x-max-length": 10, "x-single-active-consumer": True, "x-message-ttl": 1000},
        {"x-max-priority": 5, "x-max-length": 5, "x-dead-letter-exchange": "amq.fanout"},
    ]
    a, b = nodes.channel("a", confirms=True), nodes.channel("b")
    for number, arguments in enumerate(kinds):
        queue = f"{name}{number}"
        a.queue_declare(queue, durable=True, arguments=arguments)
        fill(a, queue, b"1", b"2")
        b.basic_get(queue)
        b.basic_cancel(b.basic_consume(queue, lambda *_: None, auto_ack=True))
        b.basic_get(queue)
        a.queue_delete(queue)
    wait_until(lambda: asyncio.run(left()) == {}, "all rows are swept")
