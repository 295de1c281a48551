"""Simulates overlays of whole brokers: streams, acknowledgements, a crash while messages are published, repairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from statistics import mean
from types import MethodType
from typing import Final

from broker.overlay.aggregation import Aggregation
from broker.overlay.packets import Conjunction, Data, Packet, StreamRun
from broker.overlay.simulation.leaf_member import SimulatedBinding
from broker.overlay.simulation.link import LinkFaults
from broker.overlay.simulation.network import Network
from broker.overlay.wire import encode
from broker.pipeline.faults import SimulationFailed
from broker.pipeline.simulate.interest_network import DELAY_MS, DOWN_MS, SPACE
from broker.pipeline.simulate.plan import CONTENT, SimulatedRow, Simulation, SimulationPlan, spread
from broker.pipeline.simulate.tables_level import WEIGHED
from broker.routing.footprint import footprint_bytes

__all__ = ["MessageSimulation"]

PUBLISHERS: Final = 4
EVERY_MS: Final = 20
STEP_MS: Final = 10
STABLE_MS: Final = 1_000
SETTLE_MS: Final = 120_000


class MessageSimulation(Simulation):
    """One overlay of whole brokers, of which a few leaves publish."""

    def __init__(self, plan: SimulationPlan) -> None:
        super().__init__(plan)
        self.publishers = spread(self.tree.leaves, PUBLISHERS)
        aggregation = Aggregation(plan.aggregation)
        self.network = Network(
            self.tree, [SPACE], Random(plan.seed), lambda: aggregation, plan.patterns_max, publishers=self.publishers
        )
        self.network.statistics.size_bytes = self._packet_bytes
        self._crossed = 0
        self._run_bytes = 0
        self._wanted = 0

    def run(self) -> SimulatedRow:
        """Run all phases and return what was counted. Raises: SimulationFailed."""
        network, plan = self.network, self.plan
        for link in network.links:
            link.faults = LinkFaults(least_delay_ms=DELAY_MS, most_delay_ms=DELAY_MS)
        network.start()
        for name, leaf in network.leaves.items():
            bindings = {
                pattern: SimulatedBinding(Conjunction(SPACE, pattern), durable=True)
                for pattern in self.workload.counts[name]
            }
            leaf.change_bindings(bindings, ())
        self._settle()
        self._crossed = self._run_bytes = 0
        self._publish(plan.messages - plan.messages // 2)
        self._settle()
        self.crossings.forwarded, self.crossings.forwarded_bytes = self._crossed, self._run_bytes
        row = self._row()
        broken = network.inner[self.tree.brokers["inner0"][-1]]
        flooded = self._flooded()
        network.crash(broken, DOWN_MS)
        self._publish(plan.messages // 2)
        restarted_ms = network.scheduler.now_ms + DOWN_MS
        row.converge_ms = max(0, self._settle() - restarted_ms)
        row.insufficient = self._flooded() - flooded
        row.delivered = self._delivered()
        row.events = network.scheduler.count
        if row.delivered != self._wanted:
            raise SimulationFailed(f"{row.delivered} messages were delivered, not {self._wanted}: {plan}")
        return row

    def _publish(self, count: int) -> None:
        """Publish messages in turn."""
        for place, (leaf, key, wanting) in enumerate(self.messages(self.publishers, count)):
            self._wanted += len(wanting)
            publisher = self.network.leaves[leaf]
            self.network.scheduler.after(EVERY_MS * place, partial(publisher.publish, SPACE, key, CONTENT))

    def _settle(self) -> int:
        """Run until nothing has changed for a while, and return since when no broker has learned anything.

        Raises: SimulationFailed.
        """
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
        """Return whether a broker or a link is down, or a message is not acknowledged by all that want it."""
        network = self.network
        if not all(link.works for link in network.links):
            return True
        for name in self.publishers:
            leaf = network.leaves[name]
            source = leaf.leaf.sources[SPACE]
            if source.needed_from() <= leaf.log.streams[SPACE].last:
                return True
        return False

    def _delivered(self) -> int:
        return sum(len(numbers) for leaf in self.network.leaves.values() for numbers in leaf.received_numbers.values())

    def _flooded(self) -> int:
        return sum(member.counts.flooded for member in self.network.inner.values() if member.is_running)

    def _packet_bytes(self, packet: Packet) -> int:
        """Return the size of a packet that is put on a link, and count the messages in it."""
        size_bytes = len(encode(packet))
        if isinstance(packet, StreamRun):
            self._crossed += sum(isinstance(element, Data) for element in packet.elements)
            self._run_bytes += size_bytes
        return size_bytes

    def _row(self) -> SimulatedRow:
        inner, leaves = list(self.network.inner), list(self.network.leaves)
        patterns = [self._patterns(name) for name in inner]
        return self.row(
            observed_leaves=len(leaves),
            inner_patterns=mean(patterns),
            inner_patterns_max=max(patterns),
            leaf_patterns=mean([self._patterns(name) for name in leaves]),
            inner_bytes=mean([self._bytes(name) for name in spread(inner, WEIGHED)]),
            leaf_bytes=mean([self._bytes(name) for name in spread(leaves, WEIGHED)]),
        )

    def _patterns(self, name: str) -> int:
        member = self.network.member(name)
        assert member.broker is not None
        return sum(len(member.broker.interest.roots(other, SPACE)) for other in self.tree.neighbours[member.node])

    def _bytes(self, name: str) -> int:
        """Return the memory of a broker without what its port leads to."""
        return footprint_bytes(self.network.member(name).broker, closed=(MethodType,))
