"""Compaction: copy the few records of a segment that are still needed to the tail of the log, to free its file.

The compactor of `broker.delivery` drives it between two checkpoints, in one task:

1. loop     `VhostStore.compactable` names segments. For one segment the compactor makes a SlotReference of each slot
            whose `segments` contain it; a checkpoint has written all entries of these slots.
2. thread   `plan_relocation` reads the entries and copies the records that are still needed.
3. loop     `append_relocation` appends them as MOVED records, some per turn; the committer syncs them as any record.
4. loop     `VhostStore.finish_relocation` points the queue log at the copies, some per turn, and returns the moves.
            In the same turn the compactor adds the copies' segments to the slots and updates resident messages.
5. loop     After the last move the compactor removes the old segment from the slots.
6. Later checkpoints do not refer to the segment, which is removed once no kept checkpoint does.

Between 3 and 5 a slot's messages may be in both segments, so the slot is counted in both. A crash there loses nothing:
the last checkpoint still refers to the old segment, and replay applies each MOVED record that reached the disk.

No checkpoint may be taken between 3 and 5: it would name the old segment for entries that will point to the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from broker.store.message_log import MessageLog
from broker.store.queue_entry import Entries
from broker.store.reading import is_record_of, read_places
from broker.store.record import HEAD_BYTES, TARGET, TARGET_BYTES, due_of, due_target, encode_moved, is_whole
from broker.store.segment import OFFSET_BITS

RECORD_MIN_BYTES: Final = HEAD_BYTES + 2 * TARGET_BYTES  # names and content header are at least as long as a target


class SlotReference(NamedTuple):
    """A slot that may need records of a segment.

    Shapes: the ids first <= id < end have entries in the queue log, except settled messages and transient ones in
        memory; ``indexes`` (id - first) are those of the unsettled messages that are on disk; ``segments`` are all
        segments that contain records of the slot.
    """

    queue_number: int
    first: int
    end: int
    indexes: Sequence[int]
    segments: frozenset[int]


class MovedRecord(NamedTuple):
    """The current position of a message's record, and when the message is due.

    Shapes: `origin` is the previous position; a segment is the upper half of a position. `due_ms` is 0 for a
        message that is not delayed. `slot_index` is the index of its slot in the `slots` of `plan_relocation`.
    """

    queue_number: int
    message_id: int
    origin: int
    position: int
    size: int
    due_ms: int
    slot_index: int


class Copy(NamedTuple):
    """A MOVED record, the position of the record that it copies, and the messages that need it.

    Shapes: ``needed`` contains (index of the slot, queue number, message id) of each message.
    """

    record: bytes
    origin: int
    needed: list[tuple[int, int, int]]


class Relocation:
    """The copies that free one segment.

    Shapes: `doubtful` lists the unsettled messages whose records could not be verified: (slot, indexes).
    Units: `live_bytes` is the size of the records to copy; `end` is the log position that must be confirmable before
        the relocation is finished; `left` counts the messages whose moves `take_moves` has not returned yet.
    """

    def __init__(self, live_bytes: int, copies: list[Copy], doubtful: list[tuple[SlotReference, list[int]]]) -> None:
        self.live_bytes = live_bytes
        self.doubtful = doubtful
        self.end = 0
        self.left = sum([len(copy.needed) for copy in copies])
        self._copies = copies
        self._positions: list[int] = []  # of the copies that were appended
        self._moves = self._each_move()

    def append(self, log: MessageLog, limit: int | None) -> bool:
        """Append up to `limit` copies to the log, or all if None; return whether more are left."""
        start = len(self._positions)
        copies = self._copies[start : None if limit is None else start + limit]
        self._positions += [log.append(copy.record) for copy in copies]
        self.end = log.position
        return len(self._positions) < len(self._copies)

    def take_moves(self, limit: int | None) -> list[MovedRecord]:
        """Return the moves of the next messages, up to `limit` or all if None. Invariant: all copies were appended."""
        moves = list(islice(self._moves, limit))
        self.left -= len(moves)
        return moves

    def _each_move(self) -> Iterator[MovedRecord]:
        for (record, origin, needed), position in zip(self._copies, self._positions, strict=True):
            due_ms = due_of(record)
            for slot_index, queue_number, message_id in needed:
                yield MovedRecord(queue_number, message_id, origin, position, len(record), due_ms, slot_index)


def runs_of(places: Iterable[tuple[int, int, int, int, int]]) -> list[tuple[int, int, Entries, list[int]]]:
    """Return queue number, first id, entries and due times of each run of consecutive ids of a queue.

    Shapes: each place has queue number, message id, position and size of the record, and the due time or 0.
    """
    runs: list[tuple[int, int, Entries, list[int]]] = []
    latest: dict[int, tuple[int, int, Entries, list[int]]] = {}  # by queue number
    for queue_number, message_id, position, size, moment in places:
        run = latest.get(queue_number)
        if run is None or run[1] + len(run[3]) != message_id:
            run = latest[queue_number] = (queue_number, message_id, ([], []), [])
            runs.append(run)
        (positions, sizes), due_ms = run[2], run[3]
        positions.append(position)
        sizes.append(size)
        due_ms.append(moment)
    return runs


def plan_relocation(
    synced: int,
    read_span: Callable[[int, int], bytes],
    read_entries: Callable[[SlotReference], Entries],
    segment: int,
    slots: Sequence[SlotReference],
    limit_bytes: int,
) -> Relocation | None:
    """Return copies of a segment's records that the slots need, or None if they exceed `limit_bytes`. *Blocking.*

    Invariant: the segment may be removed only if nothing is doubtful, because a damaged entry may point to it.
    Raises: StoreFailed.
    """
    if _exceeds(read_entries, segment, slots, limit_bytes):
        return None
    holders: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    doubtful: dict[int, list[int]] = {}
    live_bytes = 0
    for place, slot in enumerate(slots):
        positions, sizes = read_entries(slot)
        for index in slot.indexes:
            position, size = positions[index], sizes[index]
            if not size or position >> OFFSET_BITS not in slot.segments:
                doubtful.setdefault(place, []).append(index)
            elif position >> OFFSET_BITS == segment:
                if position not in holders:
                    live_bytes += size
                    if live_bytes > limit_bytes:
                        return None
                    holders[position] = (size, [])
                holders[position][1].append((place, index))
    copies = []
    wanted = ((position, held[0], held) for position, held in holders.items())
    for position, record, (size, needed) in read_places(read_span, wanted):
        ids = [(place, slots[place].queue_number, slots[place].first + index) for place, index in needed]
        if len(record) != size or not is_whole(record) or not all(is_record_of(record, *target) for _, *target in ids):
            for place, index in needed:
                doubtful.setdefault(place, []).append(index)
        else:
            due_ms = due_of(record)
            targets = b"".join([due_target(due_ms) if due_ms else b"", *(TARGET.pack(*target) for _, *target in ids)])
            copies.append(Copy(encode_moved(synced, record, targets), position, ids))
    return Relocation(live_bytes, copies, [(slots[place], found) for place, found in doubtful.items()])


def _exceeds(
    read_entries: Callable[[SlotReference], Entries],
    segment: int,
    slots: Sequence[SlotReference],
    limit_bytes: int,
) -> bool:
    """Return whether the records that any one queue needs exceed the limit: a queue needs each record only once."""
    least: dict[int, int] = {}  # lower bounds from the numbers of messages, which need no reads
    for slot in slots:
        if len(slot.segments) == 1:
            least[slot.queue_number] = least.get(slot.queue_number, 0) + len(slot.indexes) * RECORD_MIN_BYTES
    if least and max(least.values()) > limit_bytes:
        return True
    needed: dict[int, int] = {}
    for slot in slots:
        positions, sizes = read_entries(slot)
        own_bytes = sum([sizes[index] for index in slot.indexes if positions[index] >> OFFSET_BITS == segment])
        needed[slot.queue_number] = needed.get(slot.queue_number, 0) + own_bytes
        if needed[slot.queue_number] > limit_bytes:
            return True
    return False
