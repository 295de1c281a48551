"""Bindings between exchanges, and what is deleted with an exchange or its last binding."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from broker.amqp.content_header import facts_of
from broker.amqp.framing import BASIC_CONTENT
from broker.core.durable_topology import TopologySnapshot, restore
from broker.core.message.message import Envelope, Message
from broker.core.publishing.local_store import LocalStore
from broker.core.vhost import Vhost
from broker.routing.fanout_exchange import HISTORY_PREFIX, LENGTH_MAX
from tests.unit.core.room import Room


def chain(vhost: Vhost, *names: str, auto_delete: bool = True) -> None:
    """Declare durable exchanges, each bound to the next, and a queue bound to the last."""
    for name in names:
        vhost.exchanges.declare(name, "fanout", durable=True, auto_delete=auto_delete)
    for source, destination in pairwise(names):
        vhost.bindings.bind_exchange(destination, source, "")
    vhost.queues.declare("q", durable=True)
    vhost.bindings.bind("q", names[-1], "")


def reached(vhost: Vhost, exchange: str) -> list[str]:
    """Return the queues that a message with the key `k` reaches."""
    return [queue.name for queue in vhost.router.route(vhost.exchanges[exchange], "k").destinations]


def test_a_message_goes_through_exchanges_and_stops_where_a_binding_went(vhost: Vhost) -> None:
    """A cached route ends with the exchange binding that it used."""
    chain(vhost, "a", "b", "c", auto_delete=False)
    routes = [vhost.router.route(vhost.exchanges["a"], "k") for _ in range(3)]
    assert routes[-1].live
    assert reached(vhost, "a") == ["q"]
    vhost.bindings.unbind_exchange("c", "b", "")
    assert not any(route.live for route in routes)
    assert reached(vhost, "a") == []
    assert reached(vhost, "c") == ["q"]


def test_auto_delete_looks_at_bindings_from_an_exchange_and_goes_on_with_those_that_led_to_it(vhost: Vhost) -> None:
    """Auto-delete counts bindings from an exchange, so a chain of exchanges is deleted when its last queue is."""
    names = [f"x{number}" for number in range(3000)]  # without recursion, which would exceed the stack here
    chain(vhost, *names)
    vhost.exchanges.declare("y", "fanout", auto_delete=True)
    vhost.bindings.bind_exchange("y", "x0", "")
    vhost.bindings.unbind_exchange("y", "x0", "")
    assert "y" in vhost.exchanges  # no binding ever led from it
    vhost.queues.delete("q", None)
    assert [name for name in names if name in vhost.exchanges] == []
    assert vhost.bindings.live.count == 0


def test_durable_bindings_between_exchanges_come_back_and_others_do_not(room: Room, vhost: Vhost) -> None:
    """A binding is durable when both ends are; journal and snapshot restore only durable bindings."""
    chain(vhost, "a", "b", auto_delete=False)
    vhost.exchanges.declare("t", "fanout")
    vhost.bindings.bind_exchange("t", "a", "")
    vhost.bindings.bind_exchange("a", "t", "")
    vhost.bindings.bind_exchange("a", "amq.topic", "x.#", {"raw": b"\xff"})
    vhost.bindings.bind_exchange("b", "a", "gone")
    vhost.bindings.unbind_exchange("b", "a", "gone")
    for history in (room.journal, list(TopologySnapshot(vhost)), [*list(TopologySnapshot(vhost)), *room.journal]):
        again = Room()
        restore(again.vhost, json.loads(json.dumps(history)))
        assert sorted(TopologySnapshot(again.vhost), key=json.dumps) == sorted(TopologySnapshot(vhost), key=json.dumps)
        assert reached(again.vhost, "a") == ["q"]
        assert [binding.key for binding, _ in again.vhost.exchanges["a"].incoming_bindings] == ["x.#"]
        assert again.journal == []
        assert again.vhost.bindings.live.count == 3


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_binding_of_a_former_life_does_not_come_back(gone: str) -> None:
    """A binding is not restored if either of its ends was deleted and declared again."""
    room, again = Room(), Room()
    chain(room.vhost, "a", "b", auto_delete=False)
    room.vhost.exchanges.delete(gone)
    room.vhost.exchanges.declare(gone, "fanout", durable=True)
    restore(again.vhost, room.journal)
    assert not again.vhost.exchanges["b"].incoming
    assert not again.vhost.exchanges["a"].binding_count


def test_a_journal_of_bindings_to_queues_alone_is_read(vhost: Vhost) -> None:
    """An older journal, whose changes have `queue` and `number` and no destination, is read."""
    restore(
        vhost,
        [
            {"change": "queue_declared", "name": "q", "number": 7, "auto_delete": False, "arguments": {}},
            {"change": "bound", "exchange": "amq.topic", "queue": "q", "number": 7, "key": "k", "arguments": {}},
            {"change": "bound", "exchange": "amq.topic", "queue": "q", "number": 6, "key": "old", "arguments": {}},
        ],
    )
    assert [binding.key for binding, _ in vhost.queues["q"].incoming_bindings] == ["k"]


def test_the_dialect_of_a_topic_exchange_comes_back_with_it() -> None:
    """The dialect of a topic exchange is an argument in the journal, and its binding keys are read in it."""
    room, again = Room(), Room()
    room.vhost.exchanges.declare("x", "topic", durable=True, arguments={"x-topic-dialect": "mqtt"})
    room.vhost.queues.declare("q", durable=True)
    room.vhost.bindings.bind("q", "x", "a/+/#")
    restore(again.vhost, room.journal)
    for vhost in (room.vhost, again.vhost):
        route = vhost.router.route(vhost.exchanges["x"], "a/b/c")
        assert [queue.name for queue in route.destinations] == ["q"]
        assert vhost.router.route(vhost.exchanges["x"], "a.b.c").destinations == ()


@pytest.mark.interpreted("the calls are counted in the class")
def test_a_bound_queue_gets_a_history_in_runs_of_equal_properties(
    monkeypatch: pytest.MonkeyPatch, vhost: Vhost
) -> None:
    """10,000 messages of three kinds in a row enter a queue in three steps, in their order."""
    vhost.exchanges.declare("x", "x-recent-history", arguments={"x-recent-history-length": LENGTH_MAX})
    memory = vhost.queues[f"{HISTORY_PREFIX}x"]
    envelope = Envelope("x", "k")
    kinds = [facts_of(BASIC_CONTENT + bytes(8) + properties) for properties in (b"\x10\x00\x01", b"\x10\x00\x02")]
    for number in range(LENGTH_MAX):
        facts = kinds[3_000 <= number < 7_000]
        vhost.poster.post(Message(envelope, b"", b"%05d" % number, 1, facts, 0), (memory,))
    accept, runs = LocalStore.accept, []

    def counted(store: LocalStore, messages: list[Message], *arguments: Any) -> None:
        runs.append(len(messages))
        accept(store, messages, *arguments)

    monkeypatch.setattr(LocalStore, "accept", counted)
    queue = vhost.queues.declare("q")
    vhost.bindings.bind("q", "x", "")
    assert runs == [3_000, 4_000, 3_000]
    slots = queue.level.manager.slots.values()
    assert [message.body for slot in slots for message in slot.contents or ()] == [
        b"%05d" % number for number in range(LENGTH_MAX)
    ]
