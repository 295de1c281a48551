"""Restoring a vhost from its changes: order, overlap, numbers and argument types."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from broker.core import durable_topology
from broker.core.arguments import typed_table
from broker.core.durable_topology import TopologySnapshot, restore
from broker.core.topology import changes
from broker.core.vhost import Vhost
from tests.unit.core.room import Room

ARGUMENTS: dict[str, Any] = {
    "text": "caf\u00e9",
    "octets": b"\xff\x00",
    "binary": bytearray(b"\x00\xff"),
    "true": True,
    "one": 1,
    "one-point-zero": 1.0,
    "infinite": float("inf"),
    "big": -(2**63),
    "price": Decimal("1.50"),
    "then": datetime(2026, 11, 20, 23, 59, 59, tzinfo=UTC),
    "void": None,
    "list": [1, [b"\xfe"], {"table": "not a tag"}],
    "table": {"nested": {"decimal": Decimal(3)}, "decimal": "not a tag"},
    "looks like a tag": {"$D": "1.5"},
}


def test_what_no_field_table_holds_is_an_error() -> None:
    """A value that no field table can hold is an error when it is journalled."""
    with pytest.raises(TypeError, match="set"):
        typed_table({"a": {1}})


def test_a_restored_vhost_is_the_journalled_one() -> None:
    """Exchanges, queues with numbers and arguments, and bindings are restored, and restoring journals nothing."""
    room, again = Room(), Room()
    vhost = room.vhost
    vhost.exchanges.declare("x", "headers", durable=True, auto_delete=True, internal=True, arguments={"a": b"\xff"})
    vhost.queues.declare("gone", durable=True)
    vhost.queues.declare("q", durable=True, auto_delete=True, arguments=dict(ARGUMENTS))
    vhost.bindings.bind("q", "x", "k", {"x-match": "any", **ARGUMENTS})
    vhost.queues.delete("gone", None)
    restore(again.vhost, json.loads(json.dumps(room.journal)))
    assert list(TopologySnapshot(again.vhost)) == list(TopologySnapshot(vhost))
    assert again.journal == []
    queue, exchange = again.vhost.queues["q"], again.vhost.exchanges["x"]
    assert (queue.number, queue.auto_delete, queue.arguments) == (2, True, ARGUMENTS)
    assert (exchange.auto_delete, exchange.internal, exchange.durable) == (True, True, True)
    assert exchange.match_headers({"one": 1}) == (queue,)
    assert again.vhost.queues.next_number == vhost.queues.next_number


def test_a_number_is_not_given_again_after_a_restart() -> None:
    """The number of a deleted queue is not reused, because the log may still name it."""
    room, again = Room(), Room()
    room.vhost.queues.declare("q", durable=True)
    room.vhost.queues.delete("q", None)
    restore(again.vhost, room.journal)
    assert again.vhost.queues.declare("new", durable=True).number == 2


def test_a_queue_that_was_deleted_does_not_come_to_life_while_restoring() -> None:
    """A deleted queue gets no worker during the restore, and nothing is written for it."""
    room, again = Room(), Room()
    room.vhost.queues.declare("q", durable=True)
    room.vhost.queues.delete("q", None)
    room.vhost.queues.declare("q", durable=True)
    restore(again.vhost, room.journal)
    assert again.assigned == [2]
    assert again.records() == []


def test_a_binding_is_unbound_by_arguments_that_are_equal() -> None:
    """Text and binary with the same octets are equal arguments for an unbind, also after a restart."""
    room, again = Room(), Room()
    room.vhost.queues.declare("q", durable=True)
    room.vhost.bindings.bind("q", "amq.headers", "", {"raw": b"\xff"})
    room.vhost.bindings.unbind("q", "amq.headers", "", {"raw": bytearray(b"\xff")})
    restore(again.vhost, room.journal)
    assert not again.vhost.queues["q"].incoming


def test_changes_that_a_checkpoint_holds_already_may_be_replayed() -> None:
    """A checkpoint and the log after it overlap: changes that the checkpoint contains have no effect, however few."""
    room = Room()
    vhost = room.vhost
    vhost.exchanges.declare("x", "topic", durable=True)
    vhost.queues.declare("q", durable=True)
    vhost.bindings.bind("q", "x", "old")
    vhost.queues.delete("q", None)
    vhost.queues.declare("q", durable=True)
    vhost.bindings.bind("q", "x", "new")
    vhost.bindings.unbind("q", "x", "never")
    snapshot = list(TopologySnapshot(vhost))
    for end in range(len(room.journal) + 1):
        again = Room()
        restore(again.vhost, [*snapshot, *room.journal[:end]])
        assert list(TopologySnapshot(again.vhost)) == snapshot


def test_what_is_not_durable_is_not_in_the_snapshot(vhost: Vhost) -> None:
    """The snapshot contains neither predeclared exchanges nor transient objects."""
    vhost.exchanges.declare("x", "topic")
    vhost.queues.declare("t")
    vhost.bindings.bind("t", "amq.topic", "#")
    vhost.queues.declare("q", durable=True)
    vhost.bindings.bind("q", "x", "#")
    vhost.bindings.bind("q", "amq.topic", "#")
    assert [(change["change"], change.get("exchange")) for change in list(TopologySnapshot(vhost))] == [
        ("queue_declared", None),
        ("bound", "amq.topic"),
    ]


@pytest.mark.interpreted("functions of the topology are replaced")
def test_a_snapshot_is_told_later_than_it_is_made(monkeypatch: pytest.MonkeyPatch, vhost: Vhost) -> None:
    """A snapshot is encoded lazily: a checkpoint of 100,000 queues costs the loop one reference each."""
    vhost.exchanges.declare("x", "direct", durable=True)
    vhost.queues.declare("q", durable=True)
    made: list[str] = []

    def told(name: str, tell: Callable[[Any], changes.Change]) -> Callable[[Any], changes.Change]:
        def telling(declared: Any) -> changes.Change:
            made.append(name)
            return tell(declared)

        return telling

    for name in ("exchange_declared", "new_queue"):
        monkeypatch.setattr(durable_topology, name, told(name, getattr(changes, name)))
    snapshot = TopologySnapshot(vhost)
    vhost.queues.delete("q", None)  # the log has this change after the snapshot
    assert made == []
    assert [change["change"] for change in snapshot] == ["exchange_declared", "queue_declared"]
    assert made == ["exchange_declared", "new_queue"]
