"""The cases: who publishes where, who consumes where, over how many queues, and what the messages are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALL: Final = 100  # bytes of a body
LARGE: Final = 1024
SIZES: Final = (SMALL, LARGE)
PATHS: Final = {
    "one broker, its own log": (0, (0,)),
    "cluster, same node": (2, (0,)),
    "cluster, from A to B": (2, (1,)),
}
"""The nodes of each path, 0 for a broker by itself, and where its consumer is."""
QUEUES: Final = (1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a table.

    Shapes: `nodes` 0 is one broker with its own log; `publish_at` and `consume_at` are numbers of nodes.
    """

    name: str
    nodes: int = 0
    publish_at: tuple[int, ...] = (0,)
    consume_at: tuple[int, ...] = (0,)
    queues: int = 1
    size: int = SMALL
    messages: int = 0
    per_s: float | None = None


def cases(part: str, messages: int) -> list[Case]:
    """Return the cases of a part, in which the fastest paths move `messages` messages."""
    paths = [(name, nodes, at, size) for size in SIZES for name, (nodes, at) in PATHS.items()]
    if part == "paths":
        return [Case(name, nodes, consume_at=at, size=size, messages=messages) for name, nodes, at, size in paths]
    if part == "latency":
        few = messages // 50
        return [Case(name, nodes, (0,), at, 1, size, few, per_s=500.0) for name, nodes, at, size in paths]
    if part == "nodes":
        each = [(size, tuple(range(count))) for size in SIZES for count in (1, 2, 3, 4)]
        return [Case(_count(len(at), "node"), len(at), at, at, len(at), size, messages) for size, at in each]
    return [Case(_count(count, "queue"), 2, (0,), (1,), count, SMALL, messages) for count in QUEUES]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}s" if count > 1 else f"1 {noun}"
