"""The plans of simulations, the rows of their results, and the base class of both levels of simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, Final

import pyarrow as pa

from broker.overlay.packets import Data, StreamName, StreamRun
from broker.overlay.wire import encode
from broker.pipeline.simulate.interest_network import SPACE, Workload, least_crossings, parents_of, sized_tree

TABLES: Final = "tables"
"""The level at which brokers run only their interest: what they announce, and where they would send messages."""

MESSAGES: Final = "messages"
"""The level at which brokers run completely, with streams, acknowledgements and repairs."""

BROKERS: Final = (10, 30, 100, 300)
SUBSCRIPTIONS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 1_000_000_000)
REDUNDANCIES: Final = (1, 2, 3)
AGGREGATIONS: Final = ("none", "identical", "covering")
WHOLE_BROKERS: Final = (10, 30, 100)

FULL_BROKERS: Final = (*BROKERS, 1_000, 3_000, 10_000)
FULL_WHOLE_BROKERS: Final = (*WHOLE_BROKERS, 300, 1_000)
LARGE_BROKERS: Final = {TABLES: 1_000, MESSAGES: 100}
"""The number of brokers, by level, above which a task may take minutes."""

CONTENT: Final = bytes(128)  # the content header and body of each message


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """One overlay to simulate.

    Shapes: `level` is TABLES or MESSAGES, `aggregation` a value of the setting `overlay.aggregation`, `redundancy` the
        number of brokers of each inner tree node, `subscriptions` the number for all clients together, `patterns_max`
        the setting `overlay.patterns_max`.
    """

    brokers: int = 100
    subscriptions: int = 1_000_000
    redundancy: int = 2
    aggregation: str = "covering"
    level: str = TABLES
    fan_out: int = 10
    patterns: int = 1_000
    patterns_max: int = 10_000
    messages: int = 500
    seed: int = 1

    @property
    def weight(self) -> int:
        """A number that grows with the duration of the simulation."""
        return self.brokers**2 * self.redundancy**2 * (20 if self.level == MESSAGES else 1)

    @property
    def large(self) -> bool:
        return self.brokers > LARGE_BROKERS[self.level]


def default_plans(base: SimulationPlan, *, full: bool) -> list[SimulationPlan]:
    """Return the default variations of a plan, the largest first, so that short tasks run last."""
    found = [replace(base, brokers=brokers) for brokers in (FULL_BROKERS if full else BROKERS)]
    found += [replace(base, subscriptions=subscriptions) for subscriptions in SUBSCRIPTIONS]
    found += [replace(base, redundancy=redundancy) for redundancy in REDUNDANCIES]
    found += [replace(base, aggregation=aggregation) for aggregation in AGGREGATIONS]
    whole = replace(base, level=MESSAGES)
    found += [replace(whole, brokers=brokers) for brokers in (FULL_WHOLE_BROKERS if full else WHOLE_BROKERS)]
    return _largest_first(found)


def product_plans(base: SimulationPlan, choices: Mapping[str, Sequence[Any]]) -> list[SimulationPlan]:
    """Return a plan for each combination of the given values, the largest first."""
    found = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
    return _largest_first(replace(base, **values) for values in found)


def _largest_first(plans: Iterable[SimulationPlan]) -> list[SimulationPlan]:
    return sorted(dict.fromkeys(plans), key=lambda plan: -plan.weight)


def spread(names: Sequence[str], count: int) -> list[str]:
    """Return at most `count` of the names, evenly spaced."""
    return [names[place * len(names) // count] for place in range(count)] if count < len(names) else list(names)


@dataclass(slots=True)
class SimulatedRow:
    """The figures of one simulation; None for figures that its level does not have.

    Shapes: `edges` connect tree nodes, `links` connect brokers. `observed_leaves` is the number of leaves that are
        simulated completely. `forwarded`, `needed` and `flooded` count crossings of edges by messages. `told_changes`
        is the number of the clients' `changes` that were announced to other brokers.
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

    def to_json(self, plan: SimulationPlan) -> dict[str, Any]:
        brokers = plan.brokers
        inner = (brokers - self.leaves) / brokers
        return {
            **asdict(plan),
            **asdict(self),
            "broker_cpu_ms": self.cpu_s * 1000 / brokers,
            "broker_bytes": self.inner_bytes * inner + self.leaf_bytes * (1 - inner),
        }


class Simulation:
    """One overlay: its tree, its clients, and the messages that they publish.

    Shapes: `crossings` counts crossings of tree edges by messages, and the bytes sent over these edges.
    """

    def __init__(self, plan: SimulationPlan) -> None:
        self.plan = plan
        self.tree = sized_tree(plan.brokers, plan.fan_out, plan.redundancy)
        self.parents = parents_of(self.tree)
        self.workload = Workload(plan.patterns, plan.subscriptions, self.tree.leaves, plan.seed)
        self.crossings = Counter(forwarded=0, needed=0, flooded=0, forwarded_bytes=0, flooded_bytes=0)
        self._index = self.workload.index()

    def messages(self, leaves: Sequence[str], count: int) -> Iterator[tuple[str, str, set[str]]]:
        """Yield messages as (leaf, key, other leaves that want it), and count the needed and the flooded crossings."""
        edges, crossings = len(self.tree.brokers) - 1, self.crossings
        for _ in range(count):
            leaf, key = self.workload.choose(leaves), self.workload.key()
            wanting = set(self._index.match(key)) - {leaf}
            crossings["needed"] += least_crossings(self.parents, leaf, wanting)
            crossings["flooded"] += edges
            crossings["flooded_bytes"] += edges * self.size_bytes(leaf, key)
            yield leaf, key, wanting

    def size_bytes(self, leaf: str, key: str) -> int:
        return len(encode(StreamRun(StreamName(leaf, SPACE), 1, 1, 1, (Data(1, key, CONTENT),))))

    def row(self, **figures: Any) -> SimulatedRow:
        """Return a row with the sizes of the network, the crossings so far and these figures."""
        tree = self.tree
        return SimulatedRow(
            leaves=len(tree.leaves),
            tree_nodes=len(tree.brokers),
            edges=len(tree.brokers) - 1,
            links=sum(len(tree.brokers[node]) * len(tree.brokers[up]) for node, up in self.parents.items()),
            distinct_patterns=len({pattern for counts in self.workload.counts.values() for pattern in counts}),
            **self.crossings,
            **figures,
        )


_TYPES: Final = {"int": pa.int64(), "int | None": pa.int64(), "float": pa.float64(), "str": pa.string()}
SIMULATED_SCHEMA: Final = pa.schema(
    [
        *((field.name, _TYPES[str(field.type)]) for field in (*fields(SimulationPlan), *fields(SimulatedRow))),
        ("broker_cpu_ms", pa.float64()),
        ("broker_bytes", pa.float64()),
    ]
)
