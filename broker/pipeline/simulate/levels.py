"""Simulate overlays at two levels: only the interest of brokers, or complete brokers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from statistics import mean
from types import MethodType
from typing import Final

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Data, Packet, StreamRun
from broker.overlay.simulation.network import Network
from broker.overlay.wire import encode
from broker.pipeline.faults import SimulationFailed
from broker.pipeline.simulate.interest_network import DELAY_MS, DOWN_MS, SPACE, InterestNetwork, UpdateTraffic, sites_of
from broker.pipeline.simulate.plan import CONTENT, SimulatedRow, Simulation, SimulationPlan, spread
from broker.routing.index import footprint_bytes

OBSERVED_LEAVES: Final = 150
CHANGES: Final = 1_000
ANNOUNCED_CHANGES: Final = 20
MEASURED: Final = 12  # the most brokers of each kind whose memory is measured
PUBLISHERS: Final = 4
EVERY_MS: Final = 20
STEP_MS: Final = 10
STABLE_MS: Final = 1_000
SETTLE_MS: Final = 120_000


class TableSimulation(Simulation):
    """A simulation of one overlay in which brokers run only their interest."""

    def __init__(self, plan: SimulationPlan) -> None:
        super().__init__(plan)
        tree = self.tree
        self._sites = spread(sites_of(tree, self.parents), max(1, OBSERVED_LEAVES // plan.fan_out))
        self.network = InterestNetwork(tree, Aggregation(plan.aggregation), plan.patterns_max, self._sites)
        self._bindings = 0
        self._held = {
            leaf: {pattern: f"{pattern} 0" for pattern in counts} for leaf, counts in self.workload.counts.items()
        }
        self.leaves = [leaf for leaf in tree.leaves if self.network.is_observed(leaf)]

    def run(self) -> SimulatedRow:
        """Run all phases and return the figures. Raises: SimulationFailed."""
        network = self.network
        for leaf, held in self._held.items():
            network.change(leaf, [(name, pattern) for pattern, name in held.items()], ())
        network.start()
        setup_bytes = self._all_bytes(network.take_traffic())
        self._publish()
        row = self._tables()
        row.setup_bytes = setup_bytes
        row.changes, row.told_changes, row.told_bytes = self._change_subscriptions()
        before = network.knowledge()
        row.converge_ms = network.crash(self.tree.brokers["inner0"][-1])
        row.crash_bytes = self._all_bytes(network.take_traffic())
        if network.knowledge() != before:
            raise SimulationFailed(f"the brokers know other patterns after a crash: {self.plan}")
        return row

    def _publish(self) -> None:
        """Route messages of the observed leaves, and check that they reach every leaf that wants them."""
        for leaf, key, wanting in self.messages(self.leaves, self.plan.messages):
            crossed, reached = self.network.route(leaf, key)
            if not wanting <= reached:
                raise SimulationFailed(f"{key} of {leaf} does not reach {sorted(wanting - reached)}: {self.plan}")
            self.crossings["forwarded"] += crossed
            self.crossings["forwarded_bytes"] += crossed * self.size_bytes(leaf, key)

    def _tables(self) -> SimulatedRow:
        """Return a row with the sizes of the network and of the brokers' tables.

        The inner brokers of sites that are not observed are assumed to equal the mean of the observed ones.
        """
        tree, network = self.tree, self.network
        inner = [node for node in tree.brokers if not tree.is_leaf(node)]
        sites = self._sites
        above = [node for node in inner if network.is_observed(node) and node not in sites]

        def mean_of(figures_above: list[int], figures_of_sites: list[int]) -> float:
            share = len(above) / len(inner)
            return share * mean(figures_above or [0]) + (1 - share) * mean(figures_of_sites)

        patterns_above, patterns_of_sites = ([self._patterns(node) for node in nodes] for nodes in (above, sites))
        return self.row(
            observed_leaves=len(self.leaves),
            inner_patterns=mean_of(patterns_above, patterns_of_sites),
            inner_patterns_max=max(patterns_above + patterns_of_sites),
            leaf_patterns=mean([self._patterns(leaf) for leaf in self.leaves]),
            inner_bytes=mean_of(*([self._bytes(node) for node in spread(nodes, MEASURED)] for nodes in (above, sites))),
            leaf_bytes=mean([self._bytes(leaf) for leaf in spread(self.leaves, MEASURED)]),
        )

    def _patterns(self, node: str) -> int:
        """Return the number of patterns that the first broker of a tree node knows."""
        interest = self.network.brokers[self.tree.brokers[node][0]].interest
        return sum(len(interest.roots(other, SPACE)) for other in self.tree.neighbours[node])

    def _bytes(self, node: str) -> int:
        return footprint_bytes(self.network.brokers[self.tree.brokers[node][0]].interest)

    def _change_subscriptions(self) -> tuple[int, int, int]:
        """Change subscriptions at observed leaves, up to CHANGES times or until ANNOUNCED_CHANGES were announced.

        Return the number of changes, the number of announced ones, and the bytes of the announcements.
        """
        network, announced = self.network, 0
        network.take_traffic()
        changes = 0
        while changes < CHANGES and announced < ANNOUNCED_CHANGES:
            changes += 1
            leaf = self.workload.choose(self.leaves)
            pattern, before, after = self.workload.change(leaf)
            held = self._held[leaf]
            removed = (held.pop(pattern),) if before else ()
            added = []
            if after:  # equal subscriptions are one binding, which is replaced when their number changes
                self._bindings += 1
                held[pattern] = f"{pattern} {self._bindings}"
                added = [(held[pattern], pattern)]
            version = network.brokers[leaf].interest.version
            network.change(leaf, added, removed)
            if network.brokers[leaf].interest.version != version:
                announced += 1
                network.settle()
        return changes, announced, self._all_bytes(network.take_traffic(), sources=1)

    def _all_bytes(self, traffic: UpdateTraffic, sources: int = 0) -> int:
        """Return the bytes on all links, with those to observed leaves extrapolated to all leaves.

        Shapes: `sources` is the number of leaves that send the announcements and therefore do not receive them.
        """
        share = (len(self.leaves) - sources) / (len(self.tree.leaves) - sources)
        return round(traffic.bytes + traffic.leaf_bytes / share)


class MessageSimulation(Simulation):
    """A simulation of one overlay of complete brokers, in which a few leaves publish."""

    def __init__(self, plan: SimulationPlan) -> None:
        super().__init__(plan)
        self.publishers = spread(self.tree.leaves, PUBLISHERS)
        aggregation = Aggregation(plan.aggregation)
        self.network = Network(
            self.tree, [SPACE], Random(plan.seed), lambda: aggregation, plan.patterns_max, publishers=self.publishers
        )
        self.network.on_packet = self._count
        self._wanted = 0

    def run(self) -> SimulatedRow:
        """Run all phases and return the figures. Raises: SimulationFailed."""
        network, plan = self.network, self.plan
        for link in network.links:
            link.least_delay_ms = link.most_delay_ms = DELAY_MS
        network.start()
        for name, leaf in network.leaves.items():
            leaf.bind({pattern: Conjunction(SPACE, pattern) for pattern in self.workload.counts[name]})
        self._settle()
        self.crossings["forwarded"] = self.crossings["forwarded_bytes"] = 0
        self._publish(plan.messages - plan.messages // 2)
        self._settle()
        row = self._row()
        broken = network.inner[self.tree.brokers["inner0"][-1]]
        flooded = self._flooded()
        network.crash(broken, DOWN_MS)
        self._publish(plan.messages // 2)
        restarted_ms = network.scheduler.now_ms + DOWN_MS
        row.converge_ms = max(0, self._settle() - restarted_ms)
        row.insufficient = self._flooded() - flooded
        row.delivered = sum(leaf.delivered for leaf in network.leaves.values())
        row.events = network.scheduler.count
        if row.delivered != self._wanted:
            raise SimulationFailed(f"{row.delivered} messages were delivered, not {self._wanted}: {plan}")
        return row

    def _publish(self, count: int) -> None:
        for place, (leaf, key, wanting) in enumerate(self.messages(self.publishers, count)):
            self._wanted += len(wanting)
            publisher = self.network.leaves[leaf]
            self.network.scheduler.after(EVERY_MS * place, partial(publisher.publish, SPACE, key, CONTENT))

    def _settle(self) -> int:
        """Run until nothing changes for STABLE_MS; return when interest last changed. Raises: SimulationFailed."""
        network, scheduler = self.network, self.network.scheduler
        begun_ms = busy_ms = known_ms = scheduler.now_ms
        before: Sequence[int] = ()
        while scheduler.now_ms < max(busy_ms, known_ms) + STABLE_MS:
            scheduler.run_until(scheduler.now_ms + STEP_MS)
            known = [member.broker.interest.version for member in network.members() if member.broker is not None]
            if known != before:
                before, known_ms = known, scheduler.now_ms
            if self._is_busy():
                busy_ms = scheduler.now_ms
            if scheduler.now_ms > begun_ms + SETTLE_MS:
                raise SimulationFailed(f"not settled after {SETTLE_MS} ms: {self.plan}")
        return known_ms

    def _is_busy(self) -> bool:
        """Return whether a link is down, or a message is not acknowledged by all leaves that want it."""
        network = self.network
        if not all(link.is_up for link in network.links):
            return True
        for name in self.publishers:
            leaf = network.leaves[name]
            source = leaf.leaf.sources[SPACE]
            if source.needed_from() <= leaf.streams[SPACE].last:
                return True
        return False

    def _flooded(self) -> int:
        return sum(member.counts.flooded for member in self.network.inner.values() if member.is_running)

    def _count(self, _sender: str, _receiver: str, packet: Packet) -> None:
        """Count the messages in a run that is sent over a link, and the bytes of the run."""
        if isinstance(packet, StreamRun):
            self.crossings["forwarded"] += sum(isinstance(element, Data) for element in packet.elements)
            self.crossings["forwarded_bytes"] += len(encode(packet))

    def _row(self) -> SimulatedRow:
        inner, leaves = list(self.network.inner), list(self.network.leaves)
        patterns = [self._patterns(name) for name in inner]
        return self.row(
            observed_leaves=len(leaves),
            inner_patterns=mean(patterns),
            inner_patterns_max=max(patterns),
            leaf_patterns=mean([self._patterns(name) for name in leaves]),
            inner_bytes=mean([self._bytes(name) for name in spread(inner, MEASURED)]),
            leaf_bytes=mean([self._bytes(name) for name in spread(leaves, MEASURED)]),
        )

    def _patterns(self, name: str) -> int:
        member = self.network.member(name)
        assert member.broker is not None
        return sum(len(member.broker.interest.roots(other, SPACE)) for other in self.tree.neighbours[member.node])

    def _bytes(self, name: str) -> int:
        """Return the memory of a broker in bytes, without the objects that bound methods refer to."""
        return footprint_bytes(self.network.member(name).broker, closed=(MethodType,))
