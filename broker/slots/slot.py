"""A slot: a contiguous range of one queue's message ids with at most one owner.

Source: WSO2 Message Broker 3.0.0, "Slot Based Architecture".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from bitarray import bitarray

from broker.slots.acks import Acks
from broker.slots.redeliveries import Redeliveries, ReturnRun, put_bits
from broker.slots.states import FILL_MOVES, TENURE_MOVES, Fill, IllegalMove, Owner, Tenure

ONES: Final = [range(index, index + 1) for index in range(1024)]


def single(index: int) -> range:
    """Return a range of one index, cached if small: most queues get one message at a time, and new ranges are slow."""
    return ONES[index] if index < len(ONES) else range(index, index + 1)


def dense(indexes: Sequence[int]) -> Sequence[int]:
    """Return ascending indexes, at least one, as a range if none is missing between them."""
    if indexes[-1] - indexes[0] == len(indexes) - 1:
        return range(indexes[0], indexes[-1] + 1)
    return list(indexes) if isinstance(indexes, range) else indexes


# Defaults that all slots share: with very many slots, an object of each slot would rarely be in the processor's cache.
_NO_SEGMENTS: Final[set[int]] = set()
_NONE_UNLOGGED: Final[list[int]] = []
_MARKED: Final = bitarray("1")
_UNMARKED: Final = bitarray("0")


class Slot:
    """A range of message ids: which of them are settled, and how far they were delivered. A message of a slot is
    *ready* (not delivered, or returned), *unacked* (delivered) or *settled*. Being leased is a property of the slot:
    its ready messages stay visible to purge and limits.

    Shapes: ``contents[i]`` is message ``first + i`` or None once settled; ``contents is None`` when the slot is on
        disk. ``returned`` marks the ``returned_count`` messages below ``cursor`` that are delivered again next, or is
        None if there are none. ``redeliveries`` counts returns; it is None before the first one. Only the slot's own
        methods may add to ``segments`` and ``unlogged``. ``owner`` holds the lease, or is None while the slot is free;
        ``epoch`` is that of its last lease. Indexes that a method takes or returns ascend.
    Units: ``bytes`` is the memory charge of the messages published into it; ``sizes`` are in bytes too.
    Invariant: ``holes`` settled messages lie at or beyond ``cursor`` (never delivered, or settled before a restart).
    """

    __slots__ = ("acks", "body_bytes", "bytes", "contents", "cursor", "epoch", "fill", "first", "holes", "length",
                 "logged", "mixed", "offered", "owner", "recovered", "redeliveries", "returned", "returned_count",
                 "seen", "segments", "sizes", "tenure", "unlogged", "volatile")  # fmt: skip

    def __init__(self, first: int) -> None:
        # Compiled code lays attributes out in this order. Those used for every message share few cache lines.
        self.first = first
        self.length = 0
        self.cursor = 0
        self.holes = 0
        self.contents: list[Any] | None = []
        self.bytes = 0
        self.acks = Acks()
        self.owner: Owner | None = None
        self.returned_count = 0
        self.returned: bitarray | None = None
        self.redeliveries: Redeliveries | None = None
        self.sizes: array[int] | None = None  # the size of each message for its queue's limit in bytes, or None
        self.fill = Fill.OPEN
        self.seen = 0  # set by `core.queue.unacked.differ`, to find repeated slots
        self.offered = False  # is in the manager's heap of slots with ready messages
        self.recovered = False  # read from disk after an unclean stop: each message may have been delivered before
        self.mixed = False  # some of its messages have no log record; only in durable queues
        self.segments = _NO_SEGMENTS  # the log segments that contain its records
        self.tenure = Tenure.FREE
        self.epoch = 0
        self.body_bytes = -1  # the size of all bodies, extrapolated to settled ones; -1 until the slot is paged out
        self.logged = 0  # messages below this index have an entry in the queue log, except those in `unlogged`
        self.unlogged = _NONE_UNLOGGED  # the transient messages that a checkpoint left in memory
        self.volatile: bitarray | None = None  # transient messages that are on disk, but not restored by recovery

    @classmethod
    def restored(
        cls,
        first: int,
        length: int,
        settled: bytes,
        returns: Iterable[ReturnRun],
        segments: set[int],
        *,
        charge_bytes: int,
        recovered: bool,
    ) -> Slot:
        """Return a recovered slot, sealed and on disk."""
        slot = cls(first)
        slot.length = slot.logged = length
        slot.bytes = charge_bytes
        slot.contents = None
        slot.acks = Acks(settled, length)
        slot.holes = slot.acks.count
        slot.note_returns(returns)
        slot.segments = segments
        slot.recovered = recovered
        slot.fill = Fill.SEALED
        return slot

    @property
    def end(self) -> int:
        """The id after the last message."""
        return self.first + self.length

    @property
    def ready(self) -> int:
        """The number of ready messages."""
        return self.returned_count + self.length - self.cursor - self.holes

    @property
    def unsettled(self) -> int:
        """The number of messages that are ready or unacked."""
        return self.length - self.acks.count

    @property
    def resident(self) -> bool:
        """Whether its messages are in memory."""
        return self.contents is not None

    def mark_volatile(self, index: int) -> None:
        """Mark a transient message of a durable queue, which is on disk only because memory was short."""
        if self.volatile is None:
            self.volatile = bitarray(endian="little")
        if index >= len(self.volatile):
            self.volatile.extend(bytes(self.length - len(self.volatile)))
        self.volatile[index] = 1

    def add_segment(self, segment: int) -> bool:
        """Add a log segment that contains records of the slot, and return whether it is new."""
        if segment in self.segments:
            return False
        if not self.segments:
            self.segments = {segment}
        else:
            self.segments.add(segment)
        return True

    def mark_mixed(self) -> None:
        """Mark the slot as having messages without a log record."""
        self.mixed = True

    def is_volatile(self, index: int) -> bool:
        """Return whether a message on disk is transient."""
        volatile = self.volatile
        return volatile is not None and index < len(volatile) and bool(volatile[index])

    def page_out(self, body_bytes: int) -> None:
        """Release the messages in memory, all of which are on disk. Units: `body_bytes` includes settled bodies."""
        self.body_bytes = body_bytes
        self.contents = None

    def load(self, contents: list[Any], charge_bytes: int) -> None:
        """Set the messages read from disk, with None for each settled one.

        Units: `charge_bytes` is the charge of the unsettled messages; `bytes` is extrapolated from it to all messages.
        """
        self.contents = contents
        self.bytes = charge_bytes * self.length // max(self.unsettled, 1)

    def fill_with(self, contents: list[Any], charge_bytes: int, returns: Iterable[ReturnRun]) -> None:
        """Set the messages leased from a shared store; the slot must be empty."""
        self.contents = contents
        self.length = len(contents)
        self.bytes = charge_bytes
        self.note_returns(returns)

    def note_returns(self, returns: Iterable[ReturnRun]) -> None:
        """Set the known counts of earlier returns."""
        for run in returns:
            self._redeliveries().put(run)

    def note_logged(self) -> None:
        """Record that the queue log has an entry of every message except ``unlogged``."""
        self.logged = self.length

    def note_unlogged(self, index: int) -> None:
        """Record a message that has no entry in the queue log."""
        if not self.unlogged:
            self.unlogged = [index]
        else:
            self.unlogged.append(index)

    def note_spilled(self) -> None:
        """Record that the messages in ``unlogged`` have entries in the queue log now."""
        self.unlogged = _NONE_UNLOGGED

    def move_fill(self, event: str) -> None:
        """Apply an event to ``fill``. Raises: IllegalMove."""
        state = FILL_MOVES.get((self.fill, event))
        if state is None:
            raise IllegalMove(f"slot {self.first}: cannot {event} while {self.fill.value}")
        self.fill = state

    def move_tenure(self, event: str) -> None:
        """Apply an event to ``tenure``. Raises: IllegalMove."""
        state = TENURE_MOVES.get((self.tenure, event))
        if state is None:
            raise IllegalMove(f"slot {self.first}: cannot {event} while {self.tenure.value}")
        self.tenure = state

    def lease_to(self, owner: Owner, epoch: int) -> None:
        """Lease the slot to an owner. Raises: IllegalMove."""
        self.move_tenure("lease")
        self.owner = owner
        self.epoch = epoch

    def end_lease(self) -> None:
        """End the lease. Raises: IllegalMove."""
        self.move_tenure("end_lease")
        self.owner = None

    def delete(self) -> None:
        """Mark the slot deleted, ending its lease, and release its messages. Raises: IllegalMove."""
        self.move_tenure("delete")
        self.owner = None
        self.contents = None

    def note_sizes(self, sizes: array[int] | None) -> None:
        """Set or clear the sizes of the messages."""
        self.sizes = sizes

    def take(self, limit: int) -> Sequence[int]:
        """Take up to `limit` messages, lowest first: returned ones or, if there are none, fresh ones. Shapes: ascending
        indexes; a range if they are contiguous, except for fresh ones while there are holes.
        """
        if self.returned is not None:
            indexes = self._first_returned(limit)
            self._unreturn(indexes)
            return indexes
        start = self.cursor
        if not self.holes:
            stop = start + limit
            if stop > self.length:
                stop = self.length
            self.cursor = stop
            return single(start) if stop == start + 1 else range(start, stop)
        taken: list[int] = []
        for index in self.acks.unsettled(start, self.length):
            if len(taken) == limit:
                break
            taken.append(index)
        stop = taken[-1] + 1 if len(taken) == limit else self.length
        self.holes -= self.acks.settled_between(start, stop)
        self.cursor = stop
        return taken

    def take_one(self) -> int:
        """Take one message as `take` does, and return its index; one must be ready."""
        index = self.cursor
        if self.returned is not None or self.holes:
            return self.take(1)[0]
        self.cursor = index + 1
        return index

    def front(self, limit: int) -> Sequence[int]:
        """Return up to `limit` ready messages in the order of `take`, without taking them.

        Cost: these messages, and those between them that are not ready.
        """
        if self.returned is not None:
            return self._first_returned(limit)
        return list(islice(self.acks.unsettled(self.cursor, self.length), limit))

    def is_ready(self, index: int) -> bool:
        """Return whether a message is ready."""
        if index < self.cursor:
            returned = self.returned
            return returned is not None and index < len(returned) and bool(returned[index])
        return index < self.length and index not in self.acks

    def pick(self, indexes: Sequence[int]) -> None:
        """Take these messages out of order. Raises: ValueError if one is not ready.

        Shapes: at least one index; they ascend. Cost: O(indexes + fresh messages up to the last index).
        """
        for index in indexes:
            if not self.is_ready(index):
                raise ValueError(f"message {index} of slot {self.first} is not ready")
        below = bisect_left(indexes, self.cursor)
        if below:
            self._unreturn(indexes[:below])
        if below < len(indexes):
            chosen = indexes[below:]
            end = chosen[-1] + 1
            picked = chosen if isinstance(chosen, range) else set(chosen)
            before = [index for index in self.acks.unsettled(self.cursor, end) if index not in picked]
            self.holes -= self.acks.settled_between(self.cursor, end)
            self.cursor = end
            self._return(before)

    def size_of(self, indexes: Sequence[int]) -> int:
        """Return the total size of messages; 0 while their sizes are not known."""
        sizes = self.sizes
        if sizes is None:
            return 0
        if isinstance(indexes, range):
            return sum(sizes[indexes.start : indexes.stop])
        return sum([sizes[index] for index in indexes])

    def put_back(self, indexes: Sequence[int]) -> None:
        """Put back messages that were taken but not sent; this does not count as a return."""
        self._return(indexes)

    def requeue(self, indexes: Sequence[int], *, failed: bool) -> None:
        """Make delivered messages ready again; each keeps its position, and one more return of it is counted."""
        if indexes:
            self._return(indexes)
            self._redeliveries().add(indexes, failed=failed)

    def settle(self, indexes: Sequence[int]) -> None:
        """Mark delivered messages settled and release their contents."""
        if len(indexes) == 1:
            self.settle_one(indexes.start if isinstance(indexes, range) else indexes[0])
            return
        self.acks.settle_all(indexes)
        contents = self.contents
        if contents is not None:
            if isinstance(indexes, range):
                contents[indexes.start : indexes.stop] = [None] * len(indexes)
            else:
                for index in indexes:
                    contents[index] = None

    def settle_one(self, index: int) -> None:
        """Mark one delivered message settled and release its content."""
        self.acks.settle(index)
        contents = self.contents
        if contents is not None:
            contents[index] = None

    def lose(self, indexes: Sequence[int]) -> None:
        """Settle ready messages, returned or fresh ones, without delivering them."""
        if isinstance(indexes, range):
            below = max(0, min(indexes.stop, self.cursor) - indexes.start)
        else:
            below = bisect_left(indexes, self.cursor)
        if below:
            self._unreturn(indexes[:below])
        self.holes += len(indexes) - below
        self.settle(indexes)
        if not self.ready:
            self.cursor = self.length
            self.holes = 0

    def unacked(self) -> list[int]:
        """List the indexes of delivered messages that are not settled."""
        elsewhere = self.acks.bits(self.cursor)
        if self.returned is not None:
            returned = self.returned[: self.cursor]
            elsewhere[: len(returned)] |= returned
        return list(elsewhere.search(_UNMARKED))

    def ready_indexes(self) -> Sequence[int]:
        """Return the indexes of the ready messages; a range if ``returned`` is None and there are no holes."""
        fresh: Sequence[int] = range(self.cursor, self.length)
        if self.holes:
            fresh = list(self.acks.unsettled(self.cursor, self.length))
        if self.returned is None:
            return fresh
        return [*self._first_returned(self.returned_count), *fresh]

    def doubt(self, first: int) -> None:
        """Mark the messages from an id on as possibly delivered before."""
        self._redeliveries().doubt(max(0, first - self.first), self.length)

    def redelivered_among(self, indexes: Sequence[int]) -> int:
        """Return the number of messages that may have been delivered before."""
        if self.recovered:
            return len(indexes)
        return 0 if self.redeliveries is None else self.redeliveries.among(indexes)

    def redelivered(self, index: int) -> bool:
        """Return whether the message may have been delivered before."""
        return self.recovered or (self.redeliveries is not None and index in self.redeliveries)

    def acquired_count(self, index: int) -> int:
        """Return how often a message was returned."""
        return 0 if self.redeliveries is None else self.redeliveries.acquired(index)

    def delivery_count(self, index: int) -> int:
        """Return how many returns of a message count towards the delivery limit."""
        return 0 if self.redeliveries is None else self.redeliveries.delivered(index)

    def at_limit(self, indexes: Sequence[int], limit: int) -> list[int]:
        """List the messages among `indexes` that have reached the delivery limit."""
        if self.redeliveries is None:
            return [] if limit > 0 else list(indexes)
        return self.redeliveries.at_limit(indexes, limit)

    def ready_again(self) -> Sequence[int]:
        """Return the ready messages that have a known return."""
        runs = self.returns_of(self.ready_indexes())
        return [index for run in runs if run.acquired for index in range(run.first, run.end)]

    def first_fresh(self, limit: int) -> list[int]:
        """Return up to `limit` of the first ready messages without a known return."""
        if self.redeliveries is None:
            return list(self.front(limit))
        found: list[int] = []
        for index in self.ready_indexes():
            if not self.acquired_count(index):
                found.append(index)
                if len(found) == limit:
                    break
        return found

    def returns_of(self, indexes: Sequence[int]) -> list[ReturnRun]:
        """Return the runs of those messages that may have been delivered before."""
        return [] if self.redeliveries is None else self.redeliveries.runs(indexes)

    def _return(self, indexes: Sequence[int]) -> None:
        """Mark delivered messages as returned. A contiguous run that ends at ``cursor`` becomes fresh: the cursor moves
        back.
        """
        if not indexes:
            return
        first, end = indexes[0], indexes[-1] + 1
        if end == self.cursor and len(indexes) == end - first:
            self.cursor = first
            return
        returned = self.returned
        if returned is None:
            returned = self.returned = bitarray(endian="little")
        if end > len(returned):
            returned.extend(bytes(self.cursor - len(returned)))
        put_bits(returned, indexes, 1)
        self.returned_count += len(indexes)

    def _unreturn(self, indexes: Sequence[int]) -> None:
        """Clear the marks of returned messages."""
        assert self.returned is not None
        self.returned_count -= len(indexes)
        if self.returned_count:
            put_bits(self.returned, indexes, 0)
        else:
            self.returned = None

    def _first_returned(self, limit: int) -> Sequence[int]:
        """Return the lowest returned messages, up to `limit`; a range if they are contiguous."""
        returned = self.returned
        assert returned is not None
        limit = min(limit, self.returned_count)
        start = returned.find(1)
        if returned.count(1, start, start + limit) == limit:
            return range(start, start + limit)
        return list(islice(returned.search(_MARKED), limit))

    def _redeliveries(self) -> Redeliveries:
        """Return the counts of returns, which the first use creates."""
        redeliveries = self.redeliveries
        if redeliveries is None:
            redeliveries = self.redeliveries = Redeliveries()
        return redeliveries
