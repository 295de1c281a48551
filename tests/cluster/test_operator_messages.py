"""An operator looks at the messages of a queue that several nodes share, moves them, and sees who holds them."""

from __future__ import annotations

import json
import signal
from typing import Any

import pika

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def told(nodes: Nodes, name: str, verb: str, **arguments: Any) -> Any:
    """Return what a node answers."""
    return ask(nodes.by_name[name].folder, verb, **arguments)


def move(nodes: Nodes, name: str, queue: str, to: str, **arguments: Any) -> dict[str, Any]:
    """Move messages by a node, and return the fields of its answer that say something."""
    answer = told(nodes, name, "move", queue=queue, to=to, **arguments)
    return {key: value for key, value in answer.items() if value and key != "to"}


def fill(nodes: Nodes, name: str, queue: str, *bodies: str, properties: pika.BasicProperties = PERSISTENT) -> None:
    """Declare a queue and publish to it by a node, many messages in a call."""
    channel = nodes.channel(name)
    channel.queue_declare(queue, durable=True)
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), properties)
    assert channel.queue_declare(queue, passive=True).method.message_count == len(bodies)


def peeked(nodes: Nodes, name: str, queue: str, count: int = 100) -> list[str]:
    """Return the bodies that a node shows."""
    return [row["body"] for row in told(nodes, name, "peek", queue=queue, count=count)]


def counts(nodes: Nodes, name: str, queue: str) -> tuple[int, int]:
    """Return how many messages of a queue are ready and unacked, as a node lists them."""
    (row,) = [row for row in told(nodes, name, "list_queues") if row["name"] == queue]
    return row["messages_ready"], row["messages_unacknowledged"]


def numbered(count: int) -> list[str]:
    """Return this many different bodies."""
    return [f"{number}" for number in range(count)]


def test_a_peek_shows_what_another_node_published_and_takes_nothing(nodes: Nodes) -> None:
    """The next messages, in their order, as they were published; none is marked, and each is there afterwards."""
    fill(nodes, "a", "q", *numbered(20), properties=pika.BasicProperties(delivery_mode=2, headers={"n": 1}))
    rows = told(nodes, "b", "peek", queue="q", count=7)
    assert [row["body"] for row in rows] == numbered(7)
    assert {(row["exchange"], row["routing_key"], row["redelivered"]) for row in rows} == {("", "q", False)}
    assert rows[0]["properties"]["headers"] == {"n": 1}
    assert len({row["id"] for row in rows}) == 7
    assert peeked(nodes, "a", "q") == numbered(20)
    method, _, body = nodes.channel("b").basic_get("q", auto_ack=True)
    assert (body, method.redelivered, method.message_count) == (b"0", False, 19)
    assert peeked(nodes, "a", "q", 1) == ["1"]


def test_a_peek_passes_over_what_consumers_have(nodes: Nodes) -> None:
    """Unacked messages of another node's consumer are not shown; once returned, they are marked."""
    fill(nodes, "a", "q", *numbered(5))
    holder = nodes.channel("b")
    assert [holder.basic_get("q")[2] for _ in range(2)] == [b"0", b"1"]
    assert peeked(nodes, "a", "q") == ["2", "3", "4"]
    holder.connection.close()
    wait_until(lambda: len(peeked(nodes, "a", "q")) == 5, "they are back")
    assert [row["redelivered"] for row in told(nodes, "a", "peek", queue="q", count=9)] == [True, True, *[False] * 3]


def test_a_peek_shows_high_priorities_first(nodes: Nodes) -> None:
    """As they will be delivered."""
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3})
    for priority in (0, 3, 1, 3, 0):
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        channel.basic_publish("", "q", f"p{priority}".encode(), properties)
    assert peeked(nodes, "b", "q") == ["p3", "p3", "p1", "p0", "p0"]
    assert peeked(nodes, "b", "q", 3) == ["p3", "p3", "p1"]


def test_a_look_ends_and_begins_amid_the_messages_of_one_call(nodes: Nodes) -> None:
    """The first message that a peek or a move reaches is followed by the rest of its slot."""
    fill(nodes, "a", "q", *numbered(40))
    fill(nodes, "a", "target")
    assert peeked(nodes, "b", "q", 13) == numbered(13)
    for _ in range(4):
        assert move(nodes, "b", "q", "target", limit=7)["moved"] == 7
    assert move(nodes, "b", "q", "target", match=["body~9"]) == {"moved": 2, "unwanted": 10, "left": 10}
    assert peeked(nodes, "b", "target") == [*numbered(28), "29", "39"]
    assert peeked(nodes, "b", "q") == numbered(39)[28:29] + numbered(39)[30:]


def test_a_move_takes_messages_of_all_nodes_to_another_queue(nodes: Nodes) -> None:
    """In their order, unmarked, as many as are asked for; the others stay."""
    fill(nodes, "a", "q", *numbered(600))
    fill(nodes, "b", "target")
    assert move(nodes, "b", "q", "target", limit=550) == {"moved": 550, "left": 50}
    assert peeked(nodes, "a", "target", 1000) == numbered(550)
    assert not any(row["redelivered"] for row in told(nodes, "a", "peek", queue="target", count=1000))
    assert peeked(nodes, "b", "q") == numbered(600)[550:]
    assert move(nodes, "a", "q", "target") == {"moved": 50}
    assert (counts(nodes, "b", "q"), counts(nodes, "b", "target")) == ((0, 0), (600, 0))


def test_a_move_leaves_what_it_does_not_want_in_place(nodes: Nodes) -> None:
    """Unwanted and unroutable messages keep their order and are not marked; consumers keep what they have."""
    fill(nodes, "a", "q", *numbered(10))
    fill(nodes, "a", "odd")
    holder = nodes.channel("b")
    holder.basic_get("q")
    answer = move(nodes, "b", "q", "odd", match=["body~3"])
    assert answer == {"moved": 1, "unwanted": 8, "left": 8}
    nodes.channel("a").exchange_declare("void", "topic")
    assert move(nodes, "b", "q", "exchange:void") == {"unroutable": 8, "left": 8}
    assert peeked(nodes, "a", "q") == ["1", "2", *numbered(10)[4:]]
    assert not any(row["redelivered"] for row in told(nodes, "a", "peek", queue="q", count=9))


def test_a_move_through_an_exchange_reaches_every_queue_or_none(nodes: Nodes) -> None:
    """A copy for each queue; a message that would go back where it was ends the move, and does not go round."""
    fill(nodes, "a", "q", *numbered(300))
    for name in ("one", "two"):
        fill(nodes, "a", name)
        nodes.channel("a").queue_bind(name, "amq.fanout")
    assert move(nodes, "b", "q", "amq.fanout") == {"moved": 300}
    assert peeked(nodes, "a", "one", 500) == peeked(nodes, "b", "two", 500) == numbered(300)
    assert move(nodes, "b", "one", "exchange:amq.fanout") == {"moved": 300, "left": 300}
    assert (counts(nodes, "a", "one"), counts(nodes, "a", "two")) == ((300, 0), (600, 0))


def test_a_full_queue_takes_what_fits_and_the_rest_stays(nodes: Nodes) -> None:
    """PostgreSQL decides: nothing of a call that it refuses is done."""
    fill(nodes, "a", "q", *numbered(40))
    channel = nodes.channel("a", confirms=True)
    limited = {"x-max-length": 25, "x-overflow": "reject-publish"}
    channel.queue_declare("small", durable=True, arguments=limited)
    answer = told(nodes, "b", "move", queue="q", to="small")
    assert (answer["moved"], answer["refused"], answer["left"]) == (25, 1, 15)
    assert answer["stopped"] == "queue 'small' is full"
    assert peeked(nodes, "a", "small") == numbered(25)
    assert peeked(nodes, "a", "q") == numbered(40)[25:]
    assert not any(row["redelivered"] for row in told(nodes, "a", "peek", queue="q", count=40))
    fill(nodes, "a", "large")
    for name in ("small", "large"):
        channel.queue_bind(name, "amq.fanout")
    assert move(nodes, "b", "q", "amq.fanout") == {"refused": 15, "left": 15}
    assert (counts(nodes, "a", "q"), counts(nodes, "a", "large")) == ((15, 0), (0, 0))
    channel.queue_purge("small")
    assert move(nodes, "b", "q", "amq.fanout") == {"moved": 15}
    assert peeked(nodes, "a", "small") == peeked(nodes, "a", "large") == numbered(40)[25:]


def test_moved_messages_reach_waiting_consumers_on_both_nodes(nodes: Nodes) -> None:
    """Consumers of the target get them at once, wherever they are."""
    fill(nodes, "a", "q", *numbered(30))
    got: list[bytes] = []
    channels = [nodes.channel(name) for name in ("a", "b")]
    channels[0].queue_declare("target", durable=True)
    for channel in channels:
        channel.basic_qos(prefetch_count=2)

        def take(at: Any, method: Any, _properties: Any, body: bytes) -> None:
            got.append(body)
            at.basic_ack(method.delivery_tag)

        channel.basic_consume("target", take)
    assert move(nodes, "b", "q", "target") == {"moved": 30}

    def all_there() -> bool:
        for channel in channels:
            channel.connection.process_data_events(0.01)
        return len(got) == 30

    wait_until(all_there, "all are delivered")
    assert sorted(map(int, got)) == list(range(30))


def test_dead_letters_go_back_to_the_queue_where_they_died(nodes: Nodes) -> None:
    """Without the headers of their death."""
    channel = nodes.channel("a", confirms=True)
    channel.queue_declare("dead", durable=True)
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("work", durable=True, arguments=dying)
    channel.basic_publish("", "work", b"m", PERSISTENT)
    method, _, _ = channel.basic_get("work")
    channel.basic_reject(method.delivery_tag, requeue=False)
    wait_until(lambda: counts(nodes, "b", "dead") == (1, 0), "it is dead")
    answer = told(nodes, "b", "requeue_dead_letters", queue="dead")
    assert (answer["moved"], answer["to"], answer["left"]) == (1, {"death": "queue"}, 0)
    (row,) = told(nodes, "b", "peek", queue="work")
    assert (row["body"], row["routing_key"]) == ("m", "work")
    assert row["properties"]["headers"]["x-replayed"] == 1
    assert "x-death" not in row["properties"]["headers"]


def test_a_delayed_message_is_moved_into_its_delay(nodes: Nodes) -> None:
    """A move through an exchange of delayed messages keeps each for its time."""
    channel = nodes.channel("a", confirms=True)
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 1})
    fill(nodes, "a", "q", "one", "two", properties=properties)
    fill(nodes, "a", "target")
    channel.queue_bind("target", "later")
    assert move(nodes, "b", "q", "exchange:later") == {"moved": 2}
    wait_until(lambda: peeked(nodes, "a", "target") == ["one", "two"], "both were due")


def test_each_node_counts_what_consumers_of_the_other_have_unacked(nodes: Nodes) -> None:
    """A message is ready or unacked, on whichever node it is."""
    fill(nodes, "a", "q", *numbered(9))
    on_a, on_b = nodes.channel("a"), nodes.channel("b")
    for _ in range(2):
        on_a.basic_get("q")
    for _ in range(3):
        on_b.basic_get("q")
    for name in ("a", "b"):
        wait_until(lambda: counts(nodes, name, "q") == (4, 5), f"{name} counts those of both")  # noqa: B023
    on_b.connection.close()
    wait_until(lambda: counts(nodes, "a", "q") == (7, 2), "those of b are back")
    assert json.dumps(told(nodes, "a", "peek", queue="q", count=1))


def test_what_clients_of_all_nodes_hold_is_listed(nodes: Nodes) -> None:
    """Each node lists who holds what, on which node; a node that does not answer is left out."""
    fill(nodes, "a", "q", *numbered(4))
    channels = {name: nodes.channel(name) for name in ("a", "b")}
    for name in ("a", "b", "a"):
        channels[name].basic_get("q")

    def holders(name: str) -> list[tuple[str | None, int]]:
        rows = told(nodes, name, "unacked", queue="q")
        return sorted((row.get("node") or name, row["delivery_tag"]) for row in rows)

    everything = [("a", 1), ("a", 2), ("b", 1)]
    assert holders("a") == holders("b") == everything
    assert len({row["id"] for row in told(nodes, "b", "unacked", queue="q")}) == 3
    nodes.errors_expected("b", "node.lost")
    process = nodes.by_name["b"].running
    process.send_signal(signal.SIGSTOP)
    try:
        assert holders("a") == everything[:2]
    finally:
        process.send_signal(signal.SIGCONT)
    answers = (everything, everything[:2])  # b may have been counted out, and its client with it
    wait_until(lambda: holders("b") in answers and holders("a") == holders("b"), "b answers again")
