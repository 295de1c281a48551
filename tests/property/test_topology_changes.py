"""Every node that applies the same changes in the same order has the same topology: that of a single broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp.errors import ProtocolError
from broker.cluster.topology_changes import (
    Bound,
    ExchangeDeclared,
    ForeignOwner,
    QueueDeclared,
    QueueDeleted,
    TopologyChange,
    all_changes,
    change_of,
)
from broker.core.postponed import Postponed
from broker.core.topology.changes import Change, Journal
from broker.core.vhost import Vhost
from tests.property.test_topology_restore import ACTIONS
from tests.unit.core.room import Room

MORE: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    *ACTIONS,
    ("queues.declare", ("q",), {"auto_delete": True}),
    ("queues.declare", ("q",), {"durable": True, "arguments": {"x-max-priority": 3}}),
    ("queues.declare", ("r",), {"exclusive": True, "owner": "someone"}),
    ("queues.delete", ("r", "someone"), {}),
    ("bindings.bind", ("r", "y", "k", None, "someone"), {}),
    ("exchanges.declare", ("y", "fanout"), {"auto_delete": True}),
    ("exchanges.declare", ("x", "x-delayed-message"), {"auto_delete": True, "arguments": {"x-delayed-type": "direct"}}),
)
Action = tuple[str, tuple[Any, ...], dict[str, Any]]


def named(owner: object) -> ForeignOwner:
    """Return the name of an owner in a change."""
    return ForeignOwner(str(owner), 1, 1)


def sent(change: TopologyChange) -> TopologyChange:
    """Return a change as another node reads it."""
    return change_of(json.loads(json.dumps(change.to_json())))


def changes_of(vhost: Vhost) -> Iterator[TopologyChange]:
    """Return the changes that make everything in a vhost."""
    return all_changes(vhost, {owner: named(owner) for owner in vhost.queues.owners})


class Node(Journal):
    """A vhost whose changes are decided elsewhere; `proposed` has the last change that a method asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(journal=self)
        self.is_applying = False
        self.proposed: TopologyChange | None = None
        self._numbers = iter(range(100, 1_000_000, 10))

    def decide(self, change: Change, *, durable: bool = True, owner: object = None) -> None:
        """Keep a change that is not being applied as the proposal."""
        if self.is_applying:
            return
        proposed = change_of(change, vhost="/", durable=durable)
        if isinstance(proposed, QueueDeclared):
            proposed.number = next(self._numbers)
            proposed.owner = None if owner is None else named(owner)
        if isinstance(proposed, ExchangeDeclared) and proposed.type == "x-delayed-message":
            proposed.holding = next(self._numbers)
        self.proposed = sent(proposed)
        raise Postponed

    def retire(self, change: Change, *, durable: bool) -> bool:
        """Delete nothing."""
        return False

    def apply(self, change: TopologyChange) -> None:
        """Apply a change, and let pass what follows from it."""
        self.is_applying = True
        change.apply(self.room.vhost, lambda owner: sys.intern(owner.node))
        self.is_applying = False

    def ask(self, action: Action) -> TopologyChange | None:
        """Call a method, and return the change that it proposes, if it proposes one."""
        self.proposed = None
        with suppress(ProtocolError, Postponed):
            run(self.room.vhost, action)
        return self.proposed


def run(vhost: Vhost, action: Action) -> None:
    """Call a method of a vhost."""
    verb, positional, named = action
    attrgetter(verb)(vhost)(*positional, **named)


def shown(vhost: Vhost, *, numbers: bool = True) -> list[str]:
    """Return everything in a vhost as text; a single broker gives other numbers."""
    left_out = () if numbers else ("number", "holding")
    changes = [change.to_json() for change in changes_of(vhost)]
    kept = [{key: value for key, value in change.items() if key not in left_out} for change in changes]
    return sorted(json.dumps(change, sort_keys=True) for change in kept)


scripts = st.lists(st.sampled_from(MORE), min_size=5, max_size=40)


@settings(max_examples=150)
@given(script=scripts)
def test_every_node_has_what_a_single_broker_has(script: list[Action]) -> None:
    """Two nodes that apply one node's proposals have the topology of a broker that ran the same methods."""
    one, other, single = Node(), Node(), Room()
    for action in script:
        change = one.ask(action)
        if change is not None:
            one.apply(change)
            other.apply(change)
            assert one.ask(action) is None or action[0].endswith("delete") or "unbind" in action[0]
        with suppress(ProtocolError):
            run(single.vhost, action)
        assert shown(one.room.vhost) == shown(other.room.vhost)
        assert shown(one.room.vhost, numbers=False) == shown(single.vhost, numbers=False)
        assert one.room.vhost.bindings.live.count == single.vhost.bindings.live.count
        assert one.room.vhost.queues.declared_count == single.vhost.queues.declared_count


@settings(max_examples=150)
@given(scripts=st.tuples(scripts, scripts), late=st.integers(1, 5))
def test_changes_that_were_decided_at_a_time_leave_all_nodes_equal(
    scripts: tuple[list[Action], list[Action]], late: int
) -> None:
    """Nodes that propose while they have not seen the newest changes agree, and so does one that reads a snapshot."""
    nodes = Node(), Node()
    nodes[1]._numbers = iter(range(105, 1_000_000, 10))
    log: list[TopologyChange] = []
    applied = [0, 0]
    for place, actions in enumerate(zip(*scripts, strict=False)):
        log += [change for node, action in zip(nodes, actions, strict=True) if (change := node.ask(action))]
        for at, node in enumerate(nodes):
            if place % late == 0 or at == 0:
                for change in log[applied[at] :]:
                    node.apply(change)
                    node.apply(change)  # twice changes nothing
                applied[at] = len(log)
    for at, node in enumerate(nodes):
        for change in log[applied[at] :]:
            node.apply(change)
    third = Node()
    for change in changes_of(nodes[0].room.vhost):
        third.apply(sent(change))
    whole = shown(nodes[0].room.vhost)
    assert whole == shown(nodes[1].room.vhost) == shown(third.room.vhost)


def declared(name: str, number: int, limit: int | None = None) -> QueueDeclared:
    """Return the declaration of a queue."""
    return QueueDeclared(vhost="/", name=name, number=number, auto_delete=False, arguments={}, limit=limit)


def bound(queue: str, number: int, key: str, limit: int | None = None) -> Bound:
    """Return a binding of a queue to amq.direct."""
    return Bound(vhost="/", exchange="amq.direct", queue=queue, number=number, key=key, arguments={}, limit=limit)


def test_a_limit_holds_when_two_nodes_reach_it_at_a_time() -> None:
    """The change that comes second has no effect, on every node."""
    node = Node()
    for name, number in (("a", 1), ("b", 2)):
        node.apply(declared(name, number, limit=1))
    node.apply(bound("a", 1, "k"))
    for key in "lm":
        node.apply(bound("a", 1, key, limit=2))
    assert list(node.room.vhost.queues) == ["a"]
    assert [binding.key for binding, _ in node.room.vhost.queues["a"].incoming_bindings] == ["k", "l"]


def test_a_binding_is_not_made_to_a_later_queue_of_the_name() -> None:
    """The number tells a queue from one that was deleted."""
    node = Node()
    node.apply(declared("q", 7))
    node.apply(bound("q", 6, "k"))
    node.apply(QueueDeleted(vhost="/", name="q", number=6))
    assert list(node.room.vhost.queues) == ["q"]
    assert not node.room.vhost.bindings.live.count
