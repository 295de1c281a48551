"""One row of results: the plan of a simulation, and what was counted."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from broker.overlay.simulation.topology import SimulatedTree
from broker.pipeline.simulate.message_routes import LinkCrossings
from broker.pipeline.simulate.plan import SimulationPlan
from broker.pipeline.simulate.sized_tree import parents_of
from broker.pipeline.simulate.workload import Workload

__all__ = ["SIMULATED_COLUMNS", "SimulatedRow"]


@dataclass(slots=True)
class SimulatedRow:
    """What one simulation found; None where its level has no such figure.

    Shapes: `edges` joins tree nodes, `links` brokers. `observed_leaves` of all leaves are complete, and the figures of
        leaves come from these. Traffic is counted in crossings of an edge by a message. `inner_patterns` are what an
        inner broker has of all its directions together.
    Units: `told_changes` of `changes` made by clients were news to other brokers.
    """

    leaves: int
    tree_nodes: int
    edges: int
    links: int
    observed_leaves: int
    distinct_patterns: int
    forwarded: int
    needed: int
    flooded: int
    forwarded_bytes: int
    flooded_bytes: int
    inner_patterns: float
    inner_patterns_max: int
    leaf_patterns: float
    inner_bytes: float
    leaf_bytes: float
    converge_ms: int = 0
    cpu_s: float = 0.0
    setup_bytes: int | None = None
    changes: int | None = None
    told_changes: int | None = None
    told_bytes: int | None = None
    crash_bytes: int | None = None
    delivered: int | None = None
    insufficient: int | None = None
    events: int | None = None

    @classmethod
    def of(cls, tree: SimulatedTree, workload: Workload, crossings: LinkCrossings, **figures: Any) -> SimulatedRow:
        """Return a row of a network, with its messages and these figures."""
        return cls(
            leaves=len(tree.leaves),
            tree_nodes=len(tree.brokers),
            edges=len(tree.brokers) - 1,
            links=sum(len(tree.brokers[node]) * len(tree.brokers[up]) for node, up in parents_of(tree).items()),
            distinct_patterns=len({pattern for counts in workload.counts.values() for pattern in counts}),
            forwarded=crossings.forwarded,
            needed=crossings.needed,
            flooded=crossings.flooded,
            forwarded_bytes=crossings.forwarded_bytes,
            flooded_bytes=crossings.flooded_bytes,
            **figures,
        )

    def to_json(self, plan: SimulationPlan) -> dict[str, Any]:
        """Return all columns by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        brokers = plan.brokers
        inner = (brokers - self.leaves) / brokers
        return {
            **plan.to_json(),
            **found,
            "broker_cpu_ms": self.cpu_s * 1000 / brokers,
            "broker_bytes": self.inner_bytes * inner + self.leaf_bytes * (1 - inner),
        }


_TYPES: Final = {"int": "long", "int | None": "long", "float": "double", "str": "string"}
SIMULATED_COLUMNS: Final = {
    **{field.name: _TYPES[str(field.type)] for field in (*fields(SimulationPlan), *fields(SimulatedRow))},
    "broker_cpu_ms": "double",
    "broker_bytes": "double",
}
"""The columns of a row with their types in Spark."""
