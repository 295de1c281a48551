"""Two nodes over a database in memory, for tests of the data path."""

from __future__ import annotations

from tests.cluster.members import until
from tests.cluster.model_database import ModelDatabase, SharedTables
from tests.cluster.path_node import PathNode, PathQueue

LEVEL = 7


class ModelPair:
    """Two nodes over the same tables, with the same queue."""

    def __init__(self) -> None:
        self.tables = SharedTables()
        self.a, self.b = ModelDatabase(self.tables, "a"), ModelDatabase(self.tables, "b")
        self.node_a, self.node_b = PathNode(self.a), PathNode(self.b)
        self.queue_a, self.queue_b = PathQueue(self.node_a, LEVEL), PathQueue(self.node_b, LEVEL)

    async def close(self) -> None:
        """Stop both."""
        await self.node_a.close()
        await self.node_b.close()


def bodies(count: int, first: int = 0) -> list[bytes]:
    """Return numbered bodies."""
    return [b"%06d" % number for number in range(first, first + count)]


async def calm(queue: PathQueue) -> None:
    """Wait until a queue knows that nothing is free."""
    await until(lambda: not queue.level.demand.backlog)
