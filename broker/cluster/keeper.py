"""The keeper: expiry, length limits and delays of free messages, which no node has leased. One node does this for each
level: it drops messages that have expired or exceed a limit, and releases delayed messages that are due. The call that
settles dropped messages also dead-letters them, if their queue requires it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from bitarray import bitarray

from broker.cluster.chunk import Chunk, ChunkLoader, DamagedChunk
from broker.cluster.data_path import DataPath
from broker.cluster.database_rows import LeasedRow
from broker.cluster.errors import Unreachable
from broker.cluster.hint import FREE, LOOK, Hint
from broker.cluster.shared_level import SharedLevel
from broker.cluster.shared_queue import SharedHoldingQueue, SharedQueue
from broker.cluster.shared_slot import SharedSlot
from broker.core.delayed import Delay
from broker.core.message.message import Message
from broker.core.queue.rules import DROP_HEAD
from broker.store.record import due_target
from broker.tasks import Tasks, WakeUp

TURN_S: Final = 0.05  # between two turns
LOOK_S: Final = 1.0  # between two checks of all levels
NEVER_MS: Final = 1 << 62
DUE: Final = "due"
EXCESS: Final = "excess"
ROW: Final = ("level", "number", "ring", "count", "bits", "seen", "counts")

Indexed = tuple[int, "Message"]
Rest = tuple[LeasedRow, bitarray, int]  # messages to return, and when their row is due again


class Keeper:
    """Apply expiry, limits and delays to levels of which no other node is the keeper. Cost: a turn per second, and at
    most one per 50 ms while messages expire, are due, or arrive that may expire or exceed a limit.
    Units: ``turns`` counts these turns.
    Invariant: messages leased by a turn are settled by a batch, or returned, before the next turn begins.
    """

    def __init__(
        self, data: DataPath, *, read_clock: Callable[[], object], fail: Callable[[BaseException], None]
    ) -> None:
        """`read_clock` updates the broker's clock; `fail` ends the epoch."""
        self._data = data
        self._database = data.database
        self._read_clock = read_clock
        self._loader = ChunkLoader()
        self._soon = WakeUp()
        self._tasks = Tasks(fail)
        self.turns = 0
        data.on_freed(self.freed)

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Stop, because the epoch has ended or the node leaves."""
        await self._tasks.stop()

    def handle_hint(self, hint: Hint) -> None:
        """Schedule a turn if messages freed by another node may need it, or if hints may have been lost."""
        if hint.kind == FREE:
            self.freed(hint.levels)
        elif hint.kind == LOOK:
            self._soon.set()

    def freed(self, levels: Iterable[int]) -> None:
        """Schedule a turn if one of these levels may need it."""
        if self._soon.is_set:
            return
        for number in levels:
            level = self._data.levels.find(number)
            if level is not None and _needs_keeper(level):
                self._soon.set()
                return

    # -- turns --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                pause_s = await self._turn()
            except Unreachable:  # the reconciliation after a lost connection finds the leased rows
                pause_s = LOOK_S
            await asyncio.sleep(TURN_S)
            await self._soon.wait(max(0.0, pause_s - TURN_S))

    async def _turn(self) -> float:
        """Run the due work, and return the time until more is due, at most LOOK_S."""
        self.turns += 1
        rows = await self._database.acting("lease", "keep")
        now_ms = next(row["at_ms"] for row in rows if row["kind"] == "now")
        due_ms = min((row["at_ms"] for row in rows if row["kind"] == "next"), default=None)
        leased = [
            (row["kind"], LeasedRow(*[row[name] for name in ROW])) for row in rows if row["kind"] in {DUE, EXCESS}
        ]
        if leased:
            async with self._data.working_on([row for _, row in leased]) as chunks:
                with self._data.levels.not_ahead():  # else a copy may be delivered although its call fails
                    returned = self._work(leased, chunks, now_ms)
                await self._give_back(returned)
            await self._data.drain()
            return LOOK_S if len(returned) == len(leased) else 0.0
        return LOOK_S if due_ms is None else min(LOOK_S, max(0, due_ms - now_ms) / 1000)

    def _work(
        self, leased: Sequence[tuple[str, LeasedRow]], chunks: Mapping[int, Chunk | DamagedChunk], now_ms: int
    ) -> list[Rest]:
        """Settle messages that are due or exceed a limit; return the others, with the time of the next check."""
        self._read_clock()
        returned: list[Rest] = []
        delayed: list[tuple[int, SharedLevel, SharedSlot, int, Message]] = []
        for kind, row in leased:
            level = self._data.levels.find(row.level)
            messages = None if level is None else self._load(row, chunks)
            if level is None or messages is None:  # the queue is being created or deleted here, or a chunk is damaged
                returned.append((row, row.bits, now_ms + int(LOOK_S * 1000)))
                continue
            slot = SharedSlot(row.level, row.number or 0, row.count)
            if kind == EXCESS:
                self._dead_letter(level, slot, messages, "maxlen")
                continue
            queue = cast("SharedQueue", level.queue)
            at_ms = {index: queue.due_ms(message) for index, message in messages}
            due = [(index, message) for index, message in messages if (at := at_ms[index]) is not None and at <= now_ms]
            left = row.bits.copy()
            for index, _ in due:
                left[index] = 0
            if left.any():
                later = [at for index, at in at_ms.items() if left[index] and at is not None]
                returned.append((row, left, min(later, default=NEVER_MS)))
            if queue.is_internal:
                delayed += [(at_ms[index] or 0, level, slot, index, message) for index, message in due]
            else:
                self._dead_letter(level, slot, due, "expired")
        for _, level, slot, index, message in sorted(delayed, key=lambda one: (one[0], one[2].number, one[3])):
            cast("SharedHoldingQueue", level.queue).release(message)
            self._data.levels.batch.settling(slot)[index] = 1
        self._data.caller.commit_soon()
        return returned

    def _dead_letter(self, level: SharedLevel, slot: SharedSlot, messages: Sequence[Indexed], reason: str) -> None:
        """Settle messages, and in the same call dead-letter them if their queue requires it."""
        if level.queue.rules.dead_letter_exchange is not None:
            for _, message in messages:
                level.dead_letter_unleased(message, reason)
        bits = self._data.levels.batch.settling(slot)
        for index, _ in messages:
            bits[index] = 1

    def _load(self, row: LeasedRow, chunks: Mapping[int, Chunk | DamagedChunk]) -> list[Indexed] | None:
        """Return the leased messages with their indexes, or None if they cannot be read."""
        try:
            return self._loader.load_row(row, chunks)
        except DamagedChunk:  # logged by the node whose consumers lease the row
            return None

    async def _give_back(self, returned: Sequence[Rest]) -> None:
        if not returned:
            return
        rows, bits, due_ms = zip(*returned, strict=True)
        levels, numbers = [row.level for row in rows], [row.number or 0 for row in rows]
        await self._database.give_back(
            levels, numbers, bits, [row.seen for row in rows], [row.counts for row in rows], due_ms
        )
        self._data.leases.freed(min(numbers), sorted(set(levels)))


class SharedDelay(Delay):
    """Add the delayed messages of one exchange to its shared queue, and route those that the keeper here releases."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        cast("SharedHoldingQueue", self.queue).release_by(self.send)

    def hold(self, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Hold a message until it is due."""
        due = due_target(message.timestamp_ms + delay_ms)
        self._poster.post(message, (self.queue,), number=number + due)

    def gather(self) -> None:
        """Do nothing, because the database stores the times at which messages are due."""


def _needs_keeper(level: SharedLevel) -> bool:
    """Return whether messages of a level may expire, be delayed, or exceed a limit at which old ones are dropped."""
    rules = level.queue.rules
    return level.dated or rules.ttl_ms is not None or (rules.limited and rules.overflow == DROP_HEAD)
