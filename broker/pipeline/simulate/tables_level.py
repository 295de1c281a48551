"""Simulates what all brokers of an overlay announce to each other, and where they would send messages."""

from __future__ import annotations

from statistics import mean
from typing import Final

from broker.overlay.aggregation import Aggregation
from broker.pipeline.faults import SimulationFailed
from broker.pipeline.simulate.interest_network import SPACE, InterestNetwork, UpdateTraffic
from broker.pipeline.simulate.plan import SimulatedRow, Simulation, SimulationPlan, spread
from broker.pipeline.simulate.sized_tree import sites_of
from broker.routing.footprint import footprint_bytes

__all__ = ["WEIGHED", "TableSimulation"]

OBSERVED_LEAVES: Final = 150
CHANGES: Final = 1_000
TOLD_CHANGES: Final = 20
WEIGHED: Final = 12
"""Brokers of a kind whose memory is counted."""


class TableSimulation(Simulation):
    """One overlay whose brokers run the interest alone."""

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
        """Run all phases and return what was counted. Raises: SimulationFailed."""
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
            raise SimulationFailed(f"the brokers know something else after a crash: {self.plan}")
        return row

    def _publish(self) -> None:
        """Follow messages of the observed leaves through the tree; each must arrive wherever it is wanted."""
        for leaf, key, wanting in self.messages(self.leaves, self.plan.messages):
            crossed, reached = self.network.route(leaf, key)
            if not wanting <= reached:
                raise SimulationFailed(f"{key} of {leaf} does not reach {sorted(wanting - reached)}: {self.plan}")
            self.crossings.forwarded += crossed
            self.crossings.forwarded_bytes += crossed * self.size_bytes(leaf, key)

    def _tables(self) -> SimulatedRow:
        """Return a row with the sizes of network and tables.

        The inner brokers of sites that are not observed count as the mean of those that are.
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
            inner_bytes=mean_of(*([self._bytes(node) for node in spread(nodes, WEIGHED)] for nodes in (above, sites))),
            leaf_bytes=mean([self._bytes(leaf) for leaf in spread(self.leaves, WEIGHED)]),
        )

    def _patterns(self, node: str) -> int:
        """Return the patterns of all directions of a broker."""
        interest = self.network.brokers[self.tree.brokers[node][0]].interest
        return sum(len(interest.roots(other, SPACE)) for other in self.tree.neighbours[node])

    def _bytes(self, node: str) -> int:
        return footprint_bytes(self.network.brokers[self.tree.brokers[node][0]].interest)

    def _change_subscriptions(self) -> tuple[int, int, int]:
        """Let clients of observed leaves change subscriptions one by one until enough changes were news to others.

        Return the changes, those that were news, and the bytes that these took.
        """
        network, told = self.network, 0
        network.take_traffic()
        changes = 0
        while changes < CHANGES and told < TOLD_CHANGES:
            changes += 1
            leaf = self.workload.one_of(self.leaves)
            pattern, before, after = self.workload.change(leaf)
            held = self._held[leaf]
            removed = (held.pop(pattern),) if before else ()
            added = []
            if after:  # equal subscriptions are one binding; it changes its name, so that each change is one
                self._bindings += 1
                held[pattern] = f"{pattern} {self._bindings}"
                added = [(held[pattern], pattern)]
            version = network.brokers[leaf].interest.version
            network.change(leaf, added, removed)
            if network.brokers[leaf].interest.version != version:
                told += 1
                network.settle()
        return changes, told, self._all_bytes(network.take_traffic(), telling=1)

    def _all_bytes(self, traffic: UpdateTraffic, telling: int = 0) -> int:
        """Return the bytes of all links: what observed leaves are told counts for the others, too.

        `telling` leaves are not told themselves.
        """
        share = (len(self.leaves) - telling) / (len(self.tree.leaves) - telling)
        return round(traffic.bytes + traffic.told_bytes / share)
