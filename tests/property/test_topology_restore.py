"""After any declares, binds, unbinds and deletions, the journal and the snapshot restore the same vhost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp.errors import ProtocolError
from broker.core.durable_topology import TopologySnapshot, restore
from tests.unit.core.room import Room

DEEP = {"x-match": "any", "raw": b"\xff", "true": True, "deep": {"list": [1, None, 1.0]}}
# Few and concrete names, so that they often collide: durable and transient, and reuse after a deletion.
ACTIONS: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("exchanges.declare", ("x", "topic"), {"durable": True}),
    ("exchanges.declare", ("x", "headers"), {"durable": True, "auto_delete": True, "arguments": DEEP}),
    ("exchanges.declare", ("x", "topic"), {}),
    ("exchanges.delete", ("x",), {}),
    ("queues.declare", ("q",), {"durable": True}),
    ("queues.declare", ("q",), {"durable": True, "arguments": DEEP}),
    ("queues.declare", ("q",), {}),
    ("queues.declare", ("r",), {"durable": True}),
    ("queues.delete", ("q", None), {}),
    ("queues.delete", ("r", None), {}),
    ("bindings.bind", ("q", "x", "k.*"), {}),
    ("bindings.bind", ("q", "amq.topic", "#.k"), {}),
    ("bindings.bind", ("q", "amq.topic", "#.k", DEEP), {}),
    ("bindings.bind", ("r", "x", "", DEEP), {}),
    ("exchanges.declare", ("y", "fanout"), {"durable": True, "auto_delete": True}),
    ("exchanges.declare", ("y", "x-delayed-message"), {"durable": True, "arguments": {"x-delayed-type": "topic"}}),
    ("exchanges.delete", ("y",), {}),
    ("bindings.bind_exchange", ("y", "x", "k.*"), {}),
    ("bindings.bind_exchange", ("x", "y", "k"), {}),
    ("bindings.bind_exchange", ("x", "amq.topic", "#.k", DEEP), {}),
    ("bindings.unbind_exchange", ("y", "x", "k.*"), {}),
    ("bindings.unbind_exchange", ("x", "amq.topic", "#.k", DEEP), {}),
    ("bindings.bind", ("r", "y", "k"), {}),
    ("bindings.unbind", ("q", "x", "k.*"), {}),
    ("bindings.unbind", ("q", "amq.topic", "#.k", DEEP), {}),
)


def canonical(changes: list[dict[str, Any]]) -> list[str]:
    """Return changes as text, in an order that is independent of history."""
    return sorted(json.dumps(change, sort_keys=True) for change in changes)


@settings(max_examples=200)
@given(
    actions=st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=40),
    checkpoint=st.integers(0, 40),
    steps_at_once=st.integers(0, 5),
)
def test_journal_and_snapshot_restore_the_same_vhost(
    actions: list[tuple[str, tuple[Any, ...], dict[str, Any]]], checkpoint: int, steps_at_once: int
) -> None:
    """The journal, a snapshot, an earlier snapshot with the journal after it, and both overlapping restore the same.

    So does a snapshot whose bindings are copied while they change, with the journal since it began.
    """
    room = Room()
    middle: list[dict[str, Any]] = []
    behind = 0
    sliced: TopologySnapshot | None = None
    steps: Iterator[None] = iter(())
    for place, (verb, positional, named) in enumerate(actions):
        if place == checkpoint:
            middle, behind = list(TopologySnapshot(room.vhost)), len(room.journal)
            sliced = TopologySnapshot(room.vhost, at_once=False)
            steps = sliced.copy_bindings()
        with suppress(ProtocolError):
            attrgetter(verb)(room.vhost)(*positional, **named)
        for _ in islice(steps, steps_at_once):
            pass
    for _ in steps:
        pass
    whole = list(TopologySnapshot(room.vhost))
    histories = [room.journal, whole, [*middle, *room.journal[behind:]], [*whole, *room.journal]]
    histories.append([*(sliced or ()), *room.journal[behind:]])
    for history in histories:
        again = Room()
        restore(again.vhost, json.loads(json.dumps(history)))
        assert canonical(list(TopologySnapshot(again.vhost))) == canonical(whole)
        assert again.journal == []
        ends = [*again.vhost.queues.values(), *again.vhost.exchanges.values()]
        arriving = [arrival for end in ends for arrival in end.incoming_bindings]
        assert all(binding in exchange.bindings for binding, exchange in arriving)
        bound = sum(exchange.binding_count for exchange in again.vhost.exchanges.values())
        assert again.vhost.bindings.live.count == bound == len(arriving)
        queues = again.vhost.queues
        assert {name: queue.number for name, queue in queues.items()} == {
            name: queue.number for name, queue in room.vhost.queues.items() if queue.durable
        }
