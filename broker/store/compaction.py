"""Compaction: copy the few records of a segment that are still needed to the tail of the log, to free its file.

The compactor of `broker.delivery` drives it between two checkpoints, in one task:

1. loop     ``VhostStore.compactable`` names segments. For one of them the compactor makes a SlotReference of each slot
            whose ``segments`` contain it; a checkpoint has written all their entries.
2. thread   ``plan_relocation`` reads the entries and copies the records that are still needed.
3. loop     ``append_relocation`` appends them as MOVED records, some per turn; the committer syncs them as any record.
4. loop     ``VhostStore.finish_relocation`` points the queue log at the copies, some per turn, and returns the moves.
            In the same turn the compactor adds the copies' segments to the slots and updates resident messages.
5. loop     After the last move the compactor removes the old segment from the slots.
6. The next checkpoint no longer refers to the segment, and removes it.

Between 3 and 5 a slot's messages may be in both segments, so the slot counts in both. A crash there loses nothing:
the last checkpoint still names the old segment, and replay applies each MOVED record that reached the disk.

No checkpoint may be taken between 3 and 5: it would name the old segment for entries that will point to the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from broker.store.message_log import MessageLog
from broker.store.queue_entry import Entries
from broker.store.reading import names, read_places
from broker.store.record import HEAD_BYTES, TARGET, TARGET_BYTES, due_of, due_target, encode_moved, is_whole
from broker.store.segment import OFFSET_BITS

RECORD_MIN_BYTES: Final = HEAD_BYTES + 2 * TARGET_BYTES  # two names and a content header take as much as a target


class SlotReference(NamedTuple):
    """A slot that may need records of a segment.

    Shapes: ids first <= id < end have an entry in the queue log (the end of an open slot may not); ``indexes`` are the
        unsettled ones of them (id - first) that are on disk; ``segments`` are all segments that hold their records.
    """

    queue_number: int
    first: int
    end: int
    indexes: Sequence[int]
    segments: frozenset[int]


class MovedRecord(NamedTuple):
    """The current position of a message's record, and when the message is due.

    Shapes: positions; the segments are their upper halves. ``due_ms`` is 0 when nothing delays the message. ``place``
        is that of the message's slot among those that the relocation was planned for.
    """

    queue_number: int
    message_id: int
    origin: int
    position: int
    size: int
    due_ms: int
    place: int


class Copy(NamedTuple):
    """A MOVED record, the position of the record that it copies, and the messages that need it.

    Shapes: ``needed`` has (place of the slot, queue number, message id) of each.
    """

    record: bytes
    origin: int
    needed: list[tuple[int, int, int]]


class Relocation:
    """The copies that free one segment.

    Shapes: ``doubtful`` has the unsettled messages whose place is not verified: (slot, indexes).
    Units: ``live_bytes`` is what the copies take; ``end`` the log position that must be synced before it is finished;
        ``left`` counts the messages whose moves were not taken yet.
    """

    def __init__(self, live_bytes: int, copies: list[Copy], doubtful: list[tuple[SlotReference, list[int]]]) -> None:
        self.live_bytes = live_bytes
        self.doubtful = doubtful
        self.end = 0
        self.left = sum([len(copy.needed) for copy in copies])
        self._copies = copies
        self._positions: list[int] = []  # of the copies that were appended
        self._moves = self._each_move()

    def append(self, log: MessageLog, most: int | None) -> bool:
        """Append up to `most` copies to the log, or all if None; return whether some are left."""
        start = len(self._positions)
        copies = self._copies[start : None if most is None else start + most]
        self._positions += [log.append(copy.record) for copy in copies]
        self.end = log.position
        return len(self._positions) < len(self._copies)

    def take_moves(self, most: int | None) -> list[MovedRecord]:
        """Return the moves of up to `most` messages that were not taken yet. Invariant: all copies were appended."""
        moves = list(islice(self._moves, most))
        self.left -= len(moves)
        return moves

    def _each_move(self) -> Iterator[MovedRecord]:
        for (record, origin, needed), position in zip(self._copies, self._positions, strict=True):
            due_ms = due_of(record)
            for place, queue_number, message_id in needed:
                yield MovedRecord(queue_number, message_id, origin, position, len(record), due_ms, place)


def runs_of(places: Iterable[tuple[int, int, int, int, int]]) -> list[tuple[int, int, Entries, list[int]]]:
    """Return queue number, first id, entries and moments of each run of consecutive ids of a queue.

    Shapes: each place has queue number, message id, position and size of the record, and the moment.
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
    """Return copies of a segment's records that the slots need; None for more than `limit_bytes`. *Blocking.*

    Invariant: the segment may be removed only if nothing is doubtful, because a damaged entry may point to it.
    Raises: StoreFailed.
    """
    if _needs_more(read_entries, segment, slots, limit_bytes):
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
        if len(record) != size or not is_whole(record) or not all(names(record, *target) for _, *target in ids):
            for place, index in needed:
                doubtful.setdefault(place, []).append(index)
        else:
            due_ms = due_of(record)
            targets = b"".join([due_target(due_ms) if due_ms else b"", *(TARGET.pack(*target) for _, *target in ids)])
            copies.append(Copy(encode_moved(synced, record, targets), position, ids))
    return Relocation(live_bytes, copies, [(slots[place], found) for place, found in doubtful.items()])


def _needs_more(
    read_entries: Callable[[SlotReference], Entries],
    segment: int,
    slots: Sequence[SlotReference],
    limit_bytes: int,
) -> bool:
    """Return whether one queue alone needs too much. A queue has each record once, so summing takes no memory."""
    least: dict[int, int] = {}  # by the number of messages alone, which needs no reads
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
