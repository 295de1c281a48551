"""Whatever was declared, bound, unbound and deleted: its journal and its snapshot make the same vhost again."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp.errors import ProtocolError
from tests.unit.core.room import Room

DEEP = {"x-match": "any", "raw": b"\xff", "true": True, "deep": {"list": [1, None, 1.0]}}
# Few and concrete, so that names meet each other often: durable and transient, and a namesake after a deletion.
ACTIONS: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("declare_exchange", ("x", "topic"), {"durable": True}),
    ("declare_exchange", ("x", "headers"), {"durable": True, "auto_delete": True, "arguments": DEEP}),
    ("declare_exchange", ("x", "topic"), {}),
    ("delete_exchange", ("x",), {}),
    ("declare_queue", ("q",), {"durable": True}),
    ("declare_queue", ("q",), {"durable": True, "arguments": DEEP}),
    ("declare_queue", ("q",), {}),
    ("declare_queue", ("r",), {"durable": True}),
    ("delete_queue", ("q", None), {}),
    ("delete_queue", ("r", None), {}),
    ("bind", ("q", "x", "k.*"), {}),
    ("bind", ("q", "amq.topic", "#.k"), {}),
    ("bind", ("q", "amq.topic", "#.k", DEEP), {}),
    ("bind", ("r", "x", "", DEEP), {}),
    ("declare_exchange", ("y", "fanout"), {"durable": True, "auto_delete": True}),
    ("declare_exchange", ("y", "x-delayed-message"), {"durable": True, "arguments": {"x-delayed-type": "topic"}}),
    ("delete_exchange", ("y",), {}),
    ("bind_exchange", ("y", "x", "k.*"), {}),
    ("bind_exchange", ("x", "y", "k"), {}),
    ("bind_exchange", ("x", "amq.topic", "#.k", DEEP), {}),
    ("unbind_exchange", ("y", "x", "k.*"), {}),
    ("unbind_exchange", ("x", "amq.topic", "#.k", DEEP), {}),
    ("bind", ("r", "y", "k"), {}),
    ("unbind", ("q", "x", "k.*"), {}),
    ("unbind", ("q", "amq.topic", "#.k", DEEP), {}),
)


def canonical(changes: list[dict[str, Any]]) -> list[str]:
    """Return changes as text, in an order that does not depend on history."""
    return sorted(json.dumps(change, sort_keys=True) for change in changes)


@settings(max_examples=200, deadline=None)
@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=40), checkpoint=st.integers(0, 40))
def test_journal_and_snapshot_restore_the_same_vhost(
    actions: list[tuple[str, tuple[Any, ...], dict[str, Any]]], checkpoint: int
) -> None:
    """From the start, from a snapshot, from one in the middle with the journal behind it, and from both overlapping."""
    room = Room()
    middle: list[dict[str, Any]] = []
    behind = 0
    for place, (verb, positional, named) in enumerate(actions):
        if place == checkpoint:
            middle, behind = room.vhost.topology(), len(room.journal)
        with suppress(ProtocolError):
            getattr(room.vhost, verb)(*positional, **named)
    snapshot = room.vhost.topology()
    histories = [room.journal, snapshot, [*middle, *room.journal[behind:]], [*snapshot, *room.journal]]
    for history in histories:
        again = Room()
        again.vhost.restore(json.loads(json.dumps(history)))
        assert canonical(again.vhost.topology()) == canonical(snapshot)
        assert again.journal == []
        ends = [*again.vhost.queues.values(), *again.vhost.exchanges.values()]
        arriving = [arrival for end in ends for arrival in end.arriving]
        assert all(binding in exchange.bindings for binding, exchange in arriving)
        bound = sum(exchange.binding_count for exchange in again.vhost.exchanges.values())
        assert again.vhost.bindings.count == bound == len(arriving)
        queues = again.vhost.queues
        assert {name: queue.number for name, queue in queues.items()} == {
            name: queue.number for name, queue in room.vhost.queues.items() if queue.durable
        }
