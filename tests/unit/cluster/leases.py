"""A simulation of nodes, clocks, network and database, in which nodes lease items and count out dead nodes.

Time is simulated. Each node has its own clock, which starts at a random value and runs up to one percent fast or slow.
Nodes freeze, answers are late or lost, and the database has outages.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.cluster.database_rows import ClusterMember
from broker.cluster.other_nodes import Observer
from broker.cluster.tenure import NodeTenure, TenureState

LEASE_S = 0.5
INTERVAL_S = LEASE_S / 6
ITEMS = range(3)


def seen(node: str, epoch: int, beats: int, lease_s: float) -> ClusterMember:
    """Return a member as a poll reads it."""
    return ClusterMember(node, epoch, beats, 0, "", {"lease_ms": lease_s * 1000})


class Violation(AssertionError):
    """Two nodes may act on one item."""


class SimulatedDatabase:
    """The database functions for membership and leases."""

    def __init__(self) -> None:
        self.epochs = itertools.count(1)
        self.members: dict[str, int] = {}
        self.beats: dict[str, int] = {}
        self.holders: dict[int, str] = {}

    def join(self, node: str) -> int | None:
        """Return a new epoch, or None if the name is a member."""
        if node in self.members:
            return None
        self.members[node], self.beats[node] = next(self.epochs), 0
        return self.members[node]

    def beat(self, node: str, epoch: int) -> list[ClusterMember] | None:
        """Return all members, or None if the epoch has ended."""
        if self.members.get(node) != epoch:
            return None
        self.beats[node] += 1
        return [seen(other, self.members[other], beats, LEASE_S) for other, beats in self.beats.items()]

    def count_out(self, dead: ClusterMember) -> None:
        """Count a node out if its beats have not changed since it was read."""
        if self.members.get(dead.node) != dead.epoch:
            return
        if self.beats[dead.node] != dead.beats:
            return
        del self.members[dead.node], self.beats[dead.node]
        self.holders = {item: holder for item, holder in self.holders.items() if holder != dead.node}

    def lease(self, node: str, epoch: int) -> int | None:
        """Lease a free item to the node and return it, or None."""
        free = [item for item in ITEMS if item not in self.holders]
        if self.members.get(node) != epoch or not free:
            return None
        self.holders[free[0]] = node
        return free[0]


class SimulatedNode:
    """A node: its tenure, observer, clock, and the items that it believes to hold."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.tenure = NodeTenure(LEASE_S)
        self.observer = Observer(LEASE_S)
        self.offset_s, self.rate = chance.uniform(0, 1000), chance.uniform(0.99, 1.01)
        self.thaws_s = 0.0  # the node is frozen until then
        self.items: set[int] = set()
        self.is_waiting = False
        self.is_dead = False

    def clock_s(self, now_s: float) -> float:
        """Return the time of the node's clock."""
        return self.offset_s + now_s * self.rate


class Simulation:
    """One run with three nodes; `freezes` and `outages` enable faults. `counted_out` lists nodes taken for dead."""

    def __init__(
        self,
        seed: int,
        *,
        freezes: bool = True,
        outages: bool = True,
        delay_max_s: float = 1.5,
    ) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.freezes, self.outages, self.delay_max_s = freezes, outages, delay_max_s
        self.database = SimulatedDatabase()
        self.is_up = True
        self.nodes = [SimulatedNode(name, self.chance) for name in "abc"]
        self.counted_out: list[str] = []
        self.acted: list[str] = []  # the node of each turn that might act
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self, until_s: float) -> None:
        """Run until a time. Raises: Violation."""
        for node in self.nodes:
            self._at(self.chance.uniform(0, INTERVAL_S), partial(self._turn, node))
        if self.outages:
            self._at(self.chance.uniform(0.5, 3), self._outage)
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            self._check()

    def _at(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), event))

    def _check(self) -> None:
        acting = [node for node in self.nodes if node.tenure.may_act(node.clock_s(self.now_s))]
        for item in ITEMS:
            holders = [node.name for node in acting if item in node.items]
            if len(holders) > 1:
                raise Violation(f"at {self.now_s} s {holders} act on {item}")

    def _outage(self) -> None:
        self.is_up = not self.is_up
        self._at(self.chance.uniform(0.05, 2) if not self.is_up else self.chance.uniform(0.5, 3), self._outage)

    def _turn(self, node: SimulatedNode) -> None:
        """Join or beat, unless the node is frozen; a node does this six times per lease."""
        if node.is_dead:
            return
        self._at(INTERVAL_S, lambda: self._turn(node))
        if self.now_s < node.thaws_s:
            return
        if self.freezes and self.chance.random() < 0.03:
            node.thaws_s = self.now_s + self.chance.uniform(0.1, 3) * LEASE_S
            return
        sent_s = node.clock_s(self.now_s)
        node.tenure.expired(sent_s)
        if node.tenure.may_act(sent_s):
            self.acted.append(node.name)
        if node.is_waiting:
            return
        epoch = node.tenure.epoch
        if node.tenure.state is TenureState.LOST:
            node.items.clear()
            node.tenure.rejoin()
        if node.tenure.state is TenureState.JOINING:
            self._ask(node, lambda: self.database.join(node.name), lambda answer: self._joined(node, answer, sent_s))
            return
        self._ask(
            node, lambda: self.database.beat(node.name, epoch), lambda answer: self._beaten(node, answer, epoch, sent_s)
        )

    def _ask(self, node: SimulatedNode, call: Callable[[], Any], take: Callable[[Any], None]) -> None:
        """Send a call to the database; request and answer are delayed, and either may fail."""
        node.is_waiting = True
        self._at(self._delay_s(), lambda: self._execute(node, call, take))

    def _execute(self, node: SimulatedNode, call: Callable[[], Any], take: Callable[[Any], None]) -> None:
        if not self.is_up:
            self._at(self._delay_s(), lambda: self._failed(node))
            return
        answer = call()
        is_lost = self.outages and self.chance.random() < 0.02
        self._at(self._delay_s(), lambda: self._failed(node) if is_lost else self._deliver(node, take, answer))

    def _deliver(self, node: SimulatedNode, take: Callable[[Any], None], answer: Any) -> None:
        if self.now_s < node.thaws_s:
            self._at(node.thaws_s - self.now_s, lambda: self._deliver(node, take, answer))
            return
        node.is_waiting = False
        take(answer)

    def _failed(self, node: SimulatedNode) -> None:
        node.is_waiting = False
        node.observer.failed()

    def _delay_s(self) -> float:
        slow = self.chance.random() < 0.05
        return self.chance.uniform(0, self.delay_max_s if slow else min(0.02, self.delay_max_s))

    def _joined(self, node: SimulatedNode, epoch: int | None, sent_s: float) -> None:
        if epoch is None:  # the answer to an earlier join was lost; others count that epoch out
            return
        node.tenure.join(epoch, sent_s)
        node.observer = Observer(LEASE_S)

    def _beaten(self, node: SimulatedNode, seen: list[ClusterMember] | None, epoch: int, sent_s: float) -> None:
        now_s = node.clock_s(self.now_s)
        if seen is None:
            node.tenure.fence(epoch)
            return
        node.tenure.expired(now_s)
        node.tenure.answered(epoch, sent_s, now_s)
        for dead in node.observer.record_poll(sent_s, now_s, [one for one in seen if one.node != node.name]):
            self._at(self._delay_s(), partial(self._count_out, dead))
        if node.tenure.may_act(now_s):
            self._ask(node, lambda: self.database.lease(node.name, epoch), lambda item: self._leased(node, epoch, item))

    def _count_out(self, dead: ClusterMember) -> None:
        self.database.count_out(dead)
        believes = any(node.name == dead.node and node.tenure.epoch == dead.epoch for node in self.nodes)
        if dead.node not in self.database.members and believes:  # otherwise the answer to its join was lost
            self.counted_out.append(dead.node)

    def _leased(self, node: SimulatedNode, epoch: int, item: int | None) -> None:
        if item is not None and epoch == node.tenure.epoch and node.tenure.state is not TenureState.LOST:
            node.items.add(item)
