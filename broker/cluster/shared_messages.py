"""The ready messages of a queue that several brokers share, as an operator sees them.

Peeking leases nothing, so consumers are not affected. A move peeks too, and leases only the messages to move. Each is
added to its new queues and settled in the old one in one transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from bitarray import bitarray

from broker.amqp.errors import BrokerError, NodeLost
from broker.cluster.chunk import Chunk, ChunkLoader, DamagedChunk
from broker.cluster.data_path import DataPath
from broker.cluster.database_rows import LeasedRow, pack_rows
from broker.cluster.errors import ClusterError, Fenced
from broker.cluster.shared_level import SharedLevel, SharedLevels
from broker.cluster.shared_slot import Returned, SharedSlot, message_id
from broker.core.message.message import Message
from broker.core.moving.move import Move
from broker.core.moving.placement import Outcome, Placement, place_message
from broker.core.moving.walk import is_expired
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.delivery.committer import EngineCommitter
from broker.delivery.queue_messages import LocalMessages, Peeked
from broker.delivery.reader import SlotReader
from broker.tasks import uncancelled

LOOK_MESSAGES: Final = 256  # at most in one statement
LOOK_BYTES: Final = 4 << 20  # a statement returns no slots after the one that reaches this limit
MOVE_COPIES: Final = 256  # messages for new queues in one call; each takes a few microseconds on the loop


class Seen(NamedTuple):
    """A free message found by a peek."""

    row: LeasedRow
    bit: int
    message: Message

    @property
    def place(self) -> tuple[int, int]:
        """The number of its slot, and its index there."""
        return self.row.number or 0, self.bit


class SharedMessages(LocalMessages):
    """The free messages of one queue, and the ready ones on this node. A walk visits free messages that were committed
    when it began, the highest priority first. Messages leased to a node for its consumers are skipped, as a standalone
    broker skips unacked ones.
    """

    def __init__(
        self, vhost: Vhost, queue: Queue, reader: SlotReader, committer: EngineCommitter, data: DataPath
    ) -> None:
        super().__init__(vhost, queue, reader, committer)
        self._data = data
        self._database = data.database
        self._loader = ChunkLoader()
        self._levels: list[SharedLevel] = []
        self._next = (0, 0)  # number and index of the next message of the first level
        self._last: int | None = None  # the number at which the walk ends; None before it begins
        self._epoch = 0

    async def peek(self, count: int) -> list[Peeked]:
        """Return the next ready messages by priority; of each level, those on this node first. Raises: BrokerError."""
        async with _refusing():
            await self._begin()
            found: list[Peeked] = []
            while self._levels and len(found) < count:
                level = self._levels[0]
                if self._next == (0, 0):
                    found += await self.peek_level(level, count - len(found))
                for seen in await self._look(count - len(found)):
                    self._advance_past(seen)
                    found.append(_peeked(level, seen))
            return found

    async def move(self, move: Move) -> None:
        """Perform the next part of a move, and complete it even if the caller is cancelled. Raises: BrokerError."""
        await uncancelled(self._move(move))

    # -- the walk -----------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Begin the walk, once publishes, settlements and returns on this node are committed."""
        await self._data.drain()
        await self._data.leases.returned()
        await self._data.find_levels(self.queue)
        self._levels = [level for level in reversed(self.queue.levels) if isinstance(level, SharedLevel)]
        self._last = int((await self._database.function("read", "newest_number"))[0][0])
        self._epoch = self._database.epoch

    async def _look(self, messages_max: int) -> list[Seen]:
        """Return the next messages of the first level. If it has no more, proceed to the next level and return none."""
        assert self._last is not None
        while self._levels and messages_max > 0 and not self.queue.deleted:
            level, (number, index) = self._levels[0], self._next
            most = min(messages_max, LOOK_MESSAGES)
            arguments = level.number, number, index, self._last, most, LOOK_BYTES
            rows = [LeasedRow(*row.values()) for row in await self._database.function("read", "look", *arguments)]
            if not rows:
                break
            chunks = await self._data.reader.read(rows)
            seen: list[Seen] = []
            for row in rows:
                seen += self._load(row, chunks)
            if seen:
                return seen
            self._next = ((rows[-1].number or 0) + 1, 0)  # the chunks are unreadable
        if self._levels and messages_max > 0:
            self._levels.pop(0)
            self._next = (0, 0)
        return []

    def _load(self, row: LeasedRow, chunks: dict[int, Chunk | DamagedChunk]) -> list[Seen]:
        """Return the messages of a row; none if its chunk is unreadable, which a node with consumers logs."""
        try:
            return [Seen(row, index, message) for index, message in self._loader.load_row(row, chunks)]
        except DamagedChunk:
            return []

    def _advance_past(self, seen: Seen) -> None:
        number, index = seen.place
        self._next = (number, index + 1)

    # -- a move -------------------------------------------------------------------------------------------------------

    async def _move(self, move: Move) -> None:
        async with _refusing():
            if self._last is None:
                await self._begin()
            self._check_epoch()
            if not move.remaining:
                move.end()
                return
            level = self._levels[0] if self._levels else None
            chosen = self._choose(move, await self._look(LOOK_MESSAGES))
            if level is None or self.queue.deleted:
                move.end()
            elif chosen:
                await self._carry(move, level, chosen)

    def _choose(self, move: Move, seen: Sequence[Seen]) -> list[Seen]:
        """Return the messages to move now; count those that stay because they have expired or are not to be moved."""
        chosen: list[Seen] = []
        copies = 0
        now_ms = self.vhost.ports.clock.now_ms
        for one in seen:
            if len(chosen) >= move.remaining or copies >= MOVE_COPIES:
                break
            self._advance_past(one)
            placement = None if is_expired(self.queue, one.message, now_ms) else move.placement_of(one.message)
            if placement is None:
                move.count(None)
            else:
                chosen.append(one)
                copies += max(len(placement.queues), 1)
        return chosen

    async def _carry(self, move: Move, level: SharedLevel, chosen: Sequence[Seen]) -> None:
        """Lease messages, move them in one call, and return those not moved."""
        rows = {one.row.number: one.row for one in chosen}
        wanted = {number: bitarray(row.count, "big") for number, row in rows.items()}
        for one in chosen:
            wanted[one.row.number][one.bit] = 1
        for row in rows.values():
            row.hold(bitarray(row.count, "big"))
        async with self._data.keeping(list(rows.values())):
            self._check_epoch()
            bits = pack_rows(list(wanted.values()))
            for number, still_free in await self._database.acting("lease", "hold", level.number, list(wanted), bits):
                rows[number].hold(still_free)
            self._check_epoch()
            held = [one for one in chosen if one.row.bits[one.bit]]  # consumers have leased the others since
            placed = _Placed(self.vhost, self._data.levels, level)
            try:
                for one in held:
                    placed.place(one, move.placement_of(one.message))
            finally:  # a message added to its new queues leaves this queue, even if the next message raised an error
                self._give_back(level, [one for one in held if one.place not in placed.numbers])
            await self._data.drain()
        await self._data.leases.returned()
        for one in held:
            if move.remaining or not move.single_target:  # otherwise the only target refuses all further messages
                move.count(placed.outcome_of(one))

    def _check_epoch(self) -> None:
        """Refuse to continue in a later epoch than that of the walk. Raises: Fenced."""
        if self._database.epoch != self._epoch:
            raise Fenced("the epoch in which the command began has ended")

    def _give_back(self, level: SharedLevel, left: Sequence[Seen]) -> None:
        """Free the messages that were not moved."""
        returned: dict[int, Returned] = {}
        for one in left:
            number, bit = one.place
            if number not in returned:
                returned[number] = Returned(SharedSlot(level.number, number, one.row.count))
            returned[number].bits[bit] = 1
        self._data.leases.take_back(list(returned.values()))


class _Placed:
    """The messages of a move, each in a transaction that adds it to its new queues and settles it in the old one. This
    is the Refusable of these transactions: PostgreSQL accepts each completely, or refuses it because a queue is full;
    then the message is free again. Shapes: ``numbers`` are the numbers of the transactions, by the place of their
    message.
    """

    def __init__(self, vhost: Vhost, levels: SharedLevels, source: SharedLevel) -> None:
        self._vhost = vhost
        self._levels = levels
        self._source = source
        self._slots: dict[int, SharedSlot] = {}
        self._outcomes: dict[tuple[int, int], Outcome | None] = {}
        self._refused: set[int] = set()
        self.numbers: dict[tuple[int, int], int] = {}
        self.published = self.confirmed = self.logged = 0
        self.waiting = False

    def place(self, seen: Seen, placement: Placement | None) -> None:
        """Add a message to its new queues, and settle it in the old one."""
        outcome = None
        if placement is not None:
            number, bit = seen.place
            store = self._vhost.store
            self.published += 1
            store.note_origin((self, self.published))
            try:
                with store.transaction():
                    outcome = place_message(self._vhost, placement, seen.message.body)
                    if outcome is Outcome.ACCEPTED:
                        if number not in self._slots:
                            slot = SharedSlot(self._source.number, number, seen.row.count, delivered=False)
                            self._slots[number] = slot
                        self._levels.batch.settling(self._slots[number])[bit] = 1
                        self.numbers[seen.place] = self.published
            finally:
                store.note_origin(None)
        self._outcomes[seen.place] = outcome

    def outcome_of(self, seen: Seen) -> Outcome | None:
        """Return the outcome of a message, after the commit."""
        refused = self.numbers.get(seen.place) in self._refused
        return Outcome.REFUSED if refused else self._outcomes[seen.place]

    def confirm(self, _upto: int) -> None:
        """Do nothing, because `SharedMessages` waits for the commit."""

    def refuse(self, number: int) -> None:
        """Record that a full queue refused a message, whose transaction had no effect."""
        self._refused.add(number)


def _peeked(level: SharedLevel, seen: Seen) -> Peeked:
    row, index, message = seen
    redelivered = (row.seen is not None and bool(row.seen[index])) or str(index) in (row.counts or {})
    return Peeked.of(message, message_id(*seen.place), level.priority, redelivered=redelivered)


@asynccontextmanager
async def _refusing() -> AsyncIterator[None]:
    """Raise errors of the database as BrokerError, the refusal of a command."""
    try:
        yield
    except Fenced as error:
        raise NodeLost(f"this node was lost to the cluster: {error}") from error
    except ClusterError as error:
        raise BrokerError(f"the database of the cluster cannot be reached: {error}") from error
