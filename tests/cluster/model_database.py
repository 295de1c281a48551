"""A database in memory with the functions of the data path, for tests that count calls and choose their order."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bitarray import bitarray

from broker.cluster.database_rows import CommittedCall, LeasedRow, RefusedShare, SharedCall
from broker.cluster.errors import CommitRefused
from broker.cluster.hint import Hint

Key = tuple[int, int, str]  # level, number, holder


@dataclass
class ModelRow:
    """A row of the table of slots."""

    count: int
    bits: bitarray
    seen: bitarray
    counts: dict[str, Sequence[int]] = field(default_factory=dict)


class SharedTables:
    """The tables that all nodes share."""

    def __init__(self) -> None:
        self.rows: dict[Key, ModelRow] = {}
        self.chunks: dict[int, list[bytes]] = {}
        self.limits: dict[int, int] = {}  # of levels that reject publishes
        self.burying: set[int] = set()  # levels whose refused messages are dead-lettered
        self.nodes: list[ModelDatabase] = []
        self.number = 0
        self.transaction = 0
        self.in_flight: set[int] = set()  # transactions

    def begin(self) -> int:
        """Begin a transaction."""
        self.transaction += 1
        self.in_flight.add(self.transaction)
        return self.transaction

    def move(self, key: Key, holder: str, bits: bitarray) -> ModelRow:
        """Move bits of a row to the row of another holder, and return the moved part."""
        row = self.rows[key]
        moved = ModelRow(row.count, row.bits & bits, row.seen & bits, dict(row.counts))
        row.bits &= ~bits
        if not row.bits.any():
            del self.rows[key]
        target = self.rows.setdefault(
            (key[0], key[1], holder), ModelRow(row.count, bitarray(row.count, "big"), bitarray(row.count, "big"))
        )
        target.bits |= moved.bits
        target.seen |= moved.seen
        target.counts.update(moved.counts)
        return moved

    def free(self, level: int) -> int:
        """Count the free messages of a level."""
        return sum(row.bits.count() for (number, _, holder), row in self.rows.items() if number == level and not holder)

    def refuse(self, call: SharedCall) -> list[RefusedShare]:
        """Return the messages of a call that full queues refuse: the last of the free ones."""
        refused = []
        for place, (level, free) in enumerate(zip(call.s_level, call.s_free, strict=True)):
            if level in self.limits:
                bits = bitarray(len(free), "big")
                for index in list(free.search(1))[max(0, self.limits[level] - self.free(level)) :]:
                    bits[index] = 1
                if bits.any():
                    refused.append(RefusedShare(place, bits, level in self.burying))
        return refused

    def left(self) -> int:
        """Count all unsettled messages."""
        return sum(row.bits.count() for row in self.rows.values())


class ModelDatabase:
    """The database of one node.

    Every method takes `steps()` steps of the loop before its effect and as many after it, and waits for the future of
    `pass_through` if there is one.
    """

    def __init__(self, tables: SharedTables, node: str) -> None:
        self.tables = tables
        self.node = node
        self.calls: list[SharedCall] = []
        self.synchronous: list[bool] = []
        self.counted: Counter[str] = Counter()
        self.rows_max: Counter[str] = Counter()  # the most rows of one statement
        self.handle_hint: Callable[[Hint], None] = lambda _: None
        self.deaf = False
        self.steps: Callable[[], int] = lambda: 1
        self.pass_through: Callable[[str], asyncio.Future[None] | None] = lambda _: None
        tables.nodes.append(self)

    async def _enter(self, name: str) -> None:
        self.counted[name] += 1
        gate = self.pass_through(name)
        for _ in range(self.steps()):
            await asyncio.sleep(0)
        if gate is not None:
            await gate

    async def _leave(self) -> None:
        for _ in range(self.steps()):
            await asyncio.sleep(0)

    async def commit(self, call: SharedCall, *, synchronous: bool) -> CommittedCall:
        """Insert the shares, and clear the settled bits."""
        self.calls.append(call)
        self.synchronous.append(synchronous)
        await self._enter("commit")
        tables = self.tables
        transaction = tables.begin()
        tables.number += 1
        number = tables.number
        await self._leave()
        tables.in_flight.remove(transaction)
        if call.parts:
            tables.chunks[number] = list(call.parts)
        refused = tables.refuse(call)
        if refused and call.atomic:
            tables.number -= 1
            del tables.chunks[number]
            raise CommitRefused(
                "full", json.dumps([[place + 1, bits.to01(), buries] for place, bits, buries in refused])
            )
        left = {place: bits for place, bits, _ in refused}
        for place, (level, count, mine, free) in enumerate(
            zip(call.s_level, call.s_count, call.s_mine, call.s_free, strict=True)
        ):
            for holder, bits in ((self.node, mine), ("", free & ~left[place] if place in left else free)):
                if bits.any():
                    tables.rows[level, number, holder] = ModelRow(count, bits.copy(), bitarray(count, "big"))
        for level, settled, bits in zip(call.t_level, call.t_number, call.t_bits, strict=True):
            row = tables.rows.get((level, settled, self.node))
            if row is not None:
                row.bits &= ~bits
                if not row.bits.any():
                    del tables.rows[level, settled, self.node]
        await self._leave()
        return CommittedCall(number, 0, refused)

    async def free_messages(self, levels: Sequence[int], rows_max: int) -> dict[int, int]:
        """Count free messages."""
        return {
            level: sum(row.bits.count() for key, row in sorted(self.tables.rows.items()) if key[::2] == (level, ""))
            for level in levels
        }

    async def lease(
        self, levels: Sequence[int], room: Sequence[int], after: Sequence[int], able: Sequence[int] = ()
    ) -> list[LeasedRow]:
        """Move the lowest free bits to this node."""
        await self._enter("lease")
        self.rows_max["lease"] = max(self.rows_max["lease"], len(levels))
        rows = []
        began = self.tables.begin()
        finished = min(self.tables.in_flight)
        self.tables.in_flight.remove(began)
        by_level: dict[int, list[Key]] = {}
        for key in sorted(key for key in self.tables.rows if not key[2]):
            by_level.setdefault(key[0], []).append(key)
        for level, wanted, bound in zip(levels, room, after, strict=True):
            left = wanted
            found: list[LeasedRow] = []
            keys = [key for key in by_level.get(level, ()) if key[1] >= bound]
            for key in keys:
                if left <= 0:
                    break
                row = self.tables.rows[key]
                bits = bitarray(row.count, "big")
                for index in list(row.bits.search(1))[:left]:
                    bits[index] = 1
                left -= bits.count()
                moved = self.tables.move(key, self.node, bits)
                counts = {index: count for index, count in moved.counts.items() if bits[int(index)]}
                found.append(LeasedRow(level, key[1], 0, moved.count, moved.bits, moved.seen, counts or None))
            if found:
                rest = any(key in self.tables.rows for key in keys)
                found[-1] = dataclasses.replace(found[-1], more=rest, began=began, finished=finished)
                rows += found
            else:
                rows.append(LeasedRow(level, None, 0, 0, bitarray(endian="big"), None, None))
        await self._leave()
        return rows

    async def levels_in_use(self) -> list[int]:
        """Return none: no queue of a model is a quorum queue."""
        return []

    async def give_back(
        self,
        levels: Sequence[int],
        numbers: Sequence[int],
        bits: Sequence[bitarray],
        seen: Sequence[bitarray | None],
        counts: Sequence[Mapping[str, Sequence[int]] | None],
    ) -> None:
        """Move bits to the free rows."""
        await self._enter("give_back")
        self.rows_max["give_back"] = max(self.rows_max["give_back"], len(levels))
        for level, number, one, again, deliveries in zip(levels, numbers, bits, seen, counts, strict=True):
            row = self.tables.rows.get((level, number, self.node))
            if row is None or not (row.bits & one).any():
                continue
            if again is not None:
                row.seen |= again
            row.counts.update(deliveries or {})
            self.tables.move((level, number, self.node), "", one)

    async def chunks(self, ring: int, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return the parts of chunks."""
        await self._enter("chunks")
        return [(number, part) for number in sorted(numbers) for part in self.tables.chunks.get(number, ())]

    async def locate(self, levels: Sequence[int], numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return no moved chunks."""
        await self._enter("locate")
        return []

    async def notify(self, hint: Hint) -> None:
        """Send a hint to the other nodes."""
        await self._enter("notify")
        for node in self.tables.nodes:
            if node is not self and not node.deaf:
                node.handle_hint(hint)

    def held(self) -> list[LeasedRow]:
        """Return the rows of this node."""
        return [
            LeasedRow(key[0], key[1], 0, row.count, row.bits.copy(), row.seen, None)
            for key, row in self.tables.rows.items()
            if key[2] == self.node
        ]
