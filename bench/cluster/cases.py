"""The cases: who publishes where, who consumes where, over how many queues, and what the messages are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALL: Final = 100  # bytes of a body
LARGE: Final = 1024

PARTS: Final = ("paths", "latency", "nodes", "queues", "peers", "failover")

PATHS: Final = (
    ("one broker, its own log", 0, (0,)),
    ("cluster, same node", 2, (0,)),
    ("cluster, from A to B", 2, (1,)),
)
QUEUES: Final = (1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a table.

    Shapes: `nodes` 0 is one broker with its own log; `publish_at` and `consume_at` are numbers of nodes. `peer` is a
    library in place of brokers, and `batch` how many messages it commits at once.
    """

    part: str
    name: str
    nodes: int = 0
    publish_at: tuple[int, ...] = (0,)
    consume_at: tuple[int, ...] = (0,)
    queues: int = 1
    size: int = SMALL
    messages: int = 0
    per_s: float | None = None
    peer: str = ""
    batch: int = 1

    @property
    def key(self) -> str:
        """What identifies the case in a kept run."""
        return f"{self.part}: {self.name}, {self.size} B"


def cases(messages: int) -> list[Case]:
    """Return all cases, in which the fastest paths move `messages` messages."""
    found = []
    for size in (SMALL, LARGE):
        for name, nodes, consume_at in PATHS:
            found.append(Case("paths", name, nodes, consume_at=consume_at, size=size, messages=messages))
            found.append(
                Case("latency", name, nodes, consume_at=consume_at, size=size, messages=messages // 50, per_s=500.0)
            )
        for count in (1, 2, 3, 4):
            everywhere = tuple(range(count))
            name = f"{count} nodes" if count > 1 else "1 node"
            found.append(Case("nodes", name, count, everywhere, everywhere, count, size, messages))
    found += [
        Case("queues", f"{count:,} queues" if count > 1 else "1 queue", 2, (0,), (1,), count, SMALL, messages)
        for count in QUEUES
    ]
    for peer in ("pgqueuer", "procrastinate"):
        for size in (SMALL, LARGE):
            for batch in (1, 100):
                name = f"{peer}, {batch} per commit" if batch > 1 else f"{peer}, one per commit"
                slowness = 50 if peer == "procrastinate" or batch == 1 else 10  # about ten seconds each
                found.append(Case("peers", name, size=size, messages=messages // slowness, peer=peer, batch=batch))
    return sorted(found, key=lambda case: PARTS.index(case.part))
