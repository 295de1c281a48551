"""Simulates what all brokers of an overlay announce to each other, and where they would send messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean
from typing import Final

from broker.overlay.aggregation import Aggregation
from broker.pipeline.faults import SimulationFailed
from broker.pipeline.simulate.interest_network import SPACE, InterestNetwork, UpdateTraffic
from broker.pipeline.simulate.message_routes import LinkCrossings, least_crossings, route
from broker.pipeline.simulate.plan import SimulatedRow, SimulationPlan
from broker.pipeline.simulate.sized_tree import parents_of, sites_of, sized_tree
from broker.pipeline.simulate.workload import Workload
from broker.routing.footprint import footprint_bytes

__all__ = ["WEIGHED", "TableSimulation", "run_tables", "spread"]

OBSERVED_LEAVES: Final = 150
CHANGES: Final = 1_000
TOLD_CHANGES: Final = 20
WEIGHED: Final = 12
"""Brokers of a kind whose memory is counted."""


def run_tables(plan: SimulationPlan) -> SimulatedRow:
    """Simulate a plan of the level TABLES. Raises: SimulationFailed."""
    began_s = time.process_time()
    simulation = TableSimulation(plan)
    row = simulation.run()
    row.cpu_s = time.process_time() - began_s
    return row


def spread(names: Sequence[str], count: int) -> list[str]:
    """Return so many of the names, evenly spread."""
    return [names[place * len(names) // count] for place in range(count)] if count < len(names) else list(names)


class TableSimulation:
    """One overlay whose brokers run the interest alone."""

    def __init__(self, plan: SimulationPlan) -> None:
        self.plan = plan
        self.tree = tree = sized_tree(plan.brokers, plan.fan_out, plan.redundancy)
        self.workload = Workload(plan.patterns, plan.subscriptions, tree.leaves, plan.seed)
        self._sites = spread(sites_of(tree, parents_of(tree)), max(1, OBSERVED_LEAVES // plan.fan_out))
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
        crossings = self._publish()
        row = self._tables(crossings)
        row.setup_bytes = setup_bytes
        row.changes, row.told_changes, row.told_bytes = self._change_subscriptions()
        before = network.knowledge()
        row.converge_ms = network.crash(self.tree.brokers["inner0"][-1])
        row.crash_bytes = self._all_bytes(network.take_traffic())
        if network.knowledge() != before:
            raise SimulationFailed(f"the brokers know something else after a crash: {self.plan}")
        return row

    def _publish(self) -> LinkCrossings:
        """Follow messages of the observed leaves through the tree; each must arrive wherever it is wanted."""
        network, crossings, index = self.network, LinkCrossings(), self.workload.index()
        edges = len(self.tree.brokers) - 1
        for _ in range(self.plan.messages):
            leaf, key = self.workload.one_of(self.leaves), self.workload.key()
            wanting = set(index.match(key)) - {leaf}
            crossed, reached = route(network, leaf, key)
            if not wanting <= reached:
                raise SimulationFailed(f"{key} of {leaf} does not reach {sorted(wanting - reached)}: {self.plan}")
            needed = least_crossings(network.parents, leaf, wanting)
            crossings.add(leaf, key, crossed, needed, edges)
        return crossings

    def _tables(self, crossings: LinkCrossings) -> SimulatedRow:
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
        return SimulatedRow.of(
            tree,
            self.workload,
            crossings,
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
