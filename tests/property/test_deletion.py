"""Deletions that the indexes process in chunks, among all other changes: no client sees a difference."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.durable_topology import TopologySnapshot, restore
from broker.core.topology import deferred_unbinding
from broker.core.vhost import Vhost
from broker.routing.index import CHOICES
from broker.routing.route import Route
from tests.property.topic_reference import matches
from tests.unit.core.room import Room

CHUNK = 2
EXCHANGES = ("x", "y")
QUEUES = ("q", "r")
PATTERNS = ("a.*", "*.b", "#", "a.b", "a.#", "#.b.#", "c")
KEYS = ("a.b", "a", "c", "")
STEPS = st.one_of(
    st.tuples(st.just("bind"), st.sampled_from(QUEUES), st.sampled_from(EXCHANGES), st.sets(st.sampled_from(PATTERNS))),
    st.tuples(st.just("unbind"), st.sampled_from(QUEUES), st.sampled_from(EXCHANGES), st.sampled_from(PATTERNS)),
    st.tuples(st.just("onward"), st.just("x"), st.just("y"), st.sets(st.sampled_from(PATTERNS))),
    st.tuples(st.sampled_from(["delete queue", "delete queue", "delete exchange"]), st.booleans()),
    st.tuples(st.sampled_from(["turn", "turn", "publish", "restart"])),
)


class World:
    """A vhost and a model of it: which key leads from which exchange to which queue or exchange."""

    def __init__(self, index: str) -> None:
        self.index = index
        self.room = Room()
        self.bindings: set[tuple[str, str, str]] = set()
        self.kept: list[tuple[str, str, Route]] = []
        self.declare()

    @property
    def vhost(self) -> Vhost:
        """Return the present vhost."""
        return self.room.vhost

    def declare(self) -> None:
        """Declare the missing queues and exchanges."""
        for name in EXCHANGES:
            self.vhost.exchanges.declare(name, "topic", durable=True, arguments={"x-topic-index": self.index})
        for name in QUEUES:
            self.vhost.queues.declare(name, durable=True)

    def step(self, verb: str, *what: Any) -> None:
        """Make one change, and check that everything else is unaffected."""
        match verb:
            case "bind":
                for key in what[2]:
                    self.vhost.bindings.bind(what[0], what[1], key)
                    self.bindings.add((what[1], what[0], key))
            case "unbind":
                self.vhost.bindings.unbind(*what)
                self.bindings.discard((what[1], what[0], what[2]))
            case "onward":
                for key in what[2]:
                    self.vhost.bindings.bind_exchange(what[1], what[0], key)
                    self.bindings.add((what[0], what[1], key))
            case "delete queue":
                self.delete(QUEUES[what[0]])
            case "delete exchange":
                self.delete(EXCHANGES[what[0]])
            case "turn":
                self.turn()
            case "publish":
                for name in EXCHANGES:
                    for key in KEYS * 2:
                        self.kept.append((name, key, self.vhost.router.route(self.vhost.exchanges[name], key)))
            case _:
                self.restart()
        self.check()

    def delete(self, name: str) -> None:
        """Delete a queue or an exchange and declare a new one of that name."""
        if name in QUEUES:
            assert self.vhost.queues.delete(name, None) == 0
        else:
            self.vhost.exchanges.delete(name)
        self.bindings = {known for known in self.bindings if name not in known[:2]}
        self.check()
        self.declare()

    def turn(self) -> None:
        """Run a turn of the loop: the indexes lose at most one chunk."""
        left = self.vhost.bindings.live.deferred
        before, had = left.shed, len(left)
        self.room.deadlines.begin_turn()
        self.room.deadlines.run(0)
        assert left.shed - before == min(CHUNK, had)
        assert len(left) == had - min(CHUNK, had)

    def restart(self) -> None:
        """End the broker at any point, and restore the vhost from the journal."""
        journal = self.room.journal
        assert canonical(list(TopologySnapshot(self.vhost))) == canonical(list(TopologySnapshot(restored(journal))))
        self.room = Room()
        restore(self.vhost, journal)
        self.room.journal[:] = journal
        self.kept.clear()

    def expected(self, name: str, key: str) -> set[str]:
        """Return the queues that a key must reach."""
        words = key.split(".") if key else []
        reached = {to for source, to, bound in self.bindings if source == name and matches(bound.split("."), words)}
        onward = self.expected("y", key) if "y" in reached else set()
        return (reached - {"y"}) | onward

    def check(self) -> None:
        """Compare listings, counts and routes, including routes that were kept."""
        vhost = self.vhost
        listed = [
            (name, binding.destination.name, binding.key)
            for name, exchange in vhost.exchanges.items()
            for binding in exchange.bindings
        ]
        assert sorted(listed) == sorted(self.bindings)
        assert vhost.bindings.live.count == len(listed)
        arriving = [
            (source.name, binding.destination.name, binding.key)
            for end in (*vhost.queues.values(), *vhost.exchanges.values())
            for binding, source in end.incoming_bindings
        ]
        assert sorted(arriving) == sorted(listed)
        for name, exchange in vhost.exchanges.items():
            if name in EXCHANGES:
                for key in KEYS:
                    self.judge(name, key, vhost.router.route(exchange, key))
        self.kept = [known for known in self.kept if known[2].live]
        for known in self.kept:
            self.judge(*known)

    def judge(self, name: str, key: str, route: Route) -> None:
        """Check a route: it leads to existing queues only, once each."""
        names = [queue.name for queue in route.destinations]
        assert sorted(names) == sorted(self.expected(name, key))
        assert all(self.vhost.queues.get(queue.name) is queue for queue in route.destinations)


def restored(journal: list[dict[str, Any]]) -> Vhost:
    """Return the vhost that a journal restores."""
    again = Room().vhost
    restore(again, json.loads(json.dumps(journal)))
    return again


def canonical(changes: list[dict[str, Any]]) -> list[str]:
    """Return changes as text, in an order that is independent of history."""
    return sorted(json.dumps(change, sort_keys=True) for change in changes)


@pytest.mark.parametrize("index", CHOICES)
@given(steps=st.lists(STEPS, max_size=40))
@settings(max_examples=40)
def test_nobody_sees_what_a_deletion_leaves_behind(index: str, steps: list[tuple[Any, ...]]) -> None:
    """Publishes, binds, redeclares and restarts see no trace of a deletion, and nothing is left at the end."""
    with patch.object(deferred_unbinding, "CHUNK_BINDINGS", CHUNK):
        world = World(index)
        for step in steps:
            world.step(*step)
        for name in (*QUEUES, *EXCHANGES):
            world.delete(name)
        while world.vhost.bindings.live.deferred:
            world.turn()
        for name in EXCHANGES:
            exchange: Any = world.vhost.exchanges[name]
            assert not any(exchange._index.counts().values())
            assert not exchange._unrouted
        assert not any(queue.incoming for queue in world.vhost.queues.values())
