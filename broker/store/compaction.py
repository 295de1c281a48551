"""Compaction: what a few old messages need of a segment is copied to the tail of the log, so that the file can go.

The floor above drives it, between two checkpoints, in one task:

1. loop     ``VhostStore.compactable`` names segments; for one of them it gathers a SlotReference for each slot whose
``segments``
            hold it (recovered, resident or on disk; a checkpoint has flushed all their entries)
2. thread   ``plan_relocation`` reads the entries and copies the records that are still needed
3. loop     ``append_relocation`` appends them as MOVED records, and the committer syncs them as it does any record
4. loop     ``VhostStore.finish_relocation`` points the queue log at the copies and returns the moves: the floor above
corrects
            ``segments`` of the slots (and of resident messages their position) in the same turn
5. the next checkpoint no longer refers to the segment, and reclaims it

No checkpoint may be taken between 3 and 4: it would name the old segment for entries that are about to point to the new
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.store.message_log import MessageLog
from broker.store.queue_entry import Entries, ReadEntries
from broker.store.reading import StoredMessages, names, read_messages, read_records
from broker.store.record import TARGET, due_of, due_target, encode_moved
from broker.store.segment import OFFSET_BITS

__all__ = ["Move", "Relocation", "SlotReference", "append_relocation", "plan_relocation"]


class SlotReference(NamedTuple):
    """A slot that may need something of a segment.

    Shapes: ids first <= id < end have an entry in the queue log (the end of an open slot may not); ``indexes`` are the
        unsettled ones of them (id - first) that are on disk; ``segments`` are all those that hold some of them.
    """

    queue_number: int
    first: int
    end: int
    indexes: Sequence[int]
    segments: frozenset[int]


class Move(NamedTuple):
    """Where a message's record lies now, and when it is due.

    Shapes: positions; the segments are their upper halves. ``due_ms`` is 0 when nothing delays the message.
    """

    queue_number: int
    message_id: int
    origin: int
    position: int
    size: int
    due_ms: int = 0


@dataclass(slots=True)
class Relocation:
    """The copies that free one segment.

    Shapes: ``records`` pairs each MOVED record with its origin and the (queue number, message id) that need it.
        ``doubtful`` has the unsettled messages of which nothing proves where they lie: (slot, indexes).
    Units: ``live_bytes`` is what the copies take; ``end`` the log position that must be synced before it is finished.
    """

    segment: int
    live_bytes: int
    records: list[tuple[bytes, int, list[tuple[int, int]]]]
    doubtful: list[tuple[SlotReference, list[int]]]
    moves: list[Move] = field(default_factory=list)
    end: int = 0


def plan_relocation(
    synced: int,
    read_span: Callable[[int, int], bytes],
    read_entries: Callable[[SlotReference], ReadEntries],
    segment: int,
    slots: Sequence[SlotReference],
    limit_bytes: int,
) -> Relocation | None:
    """Return copies of what the slots need of a segment; None when that is more than `limit_bytes`. *Blocking.*

    Invariant: the segment may go only when nothing is doubtful: a damaged entry may be that of its message.
    Raises: StoreFailed.
    """
    if _needs_more(read_entries, segment, slots, limit_bytes):
        return None
    holders: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    doubtful: dict[int, list[int]] = {}
    live_bytes = 0
    for place, slot in enumerate(slots):
        positions, sizes, unproved = read_entries(slot)
        elsewhere = []  # by an entry that an earlier version wrote without a checksum
        proofless = set(unproved)
        for index in slot.indexes:
            position, size = positions[index], sizes[index]
            if not size or position >> OFFSET_BITS not in slot.segments:
                doubtful.setdefault(place, []).append(index)
            elif position >> OFFSET_BITS != segment:
                if index in proofless:
                    elsewhere.append(index)
            else:
                if position not in holders:
                    live_bytes += size
                    if live_bytes > limit_bytes:
                        return None
                    holders[position] = (size, [])
                holders[position][1].append((place, index))
        for index in _absent(read_span, slot, (positions, sizes), elsewhere):
            doubtful.setdefault(place, []).append(index)
    records = []
    wanted = ((position, size, needed) for position, (size, needed) in holders.items())
    for position, record, needed in read_records(read_span, wanted):
        ids = [(slots[place].queue_number, slots[place].first + index) for place, index in needed]
        if record is None or not all(names(record, *target) for target in ids):
            for place, index in needed:
                doubtful.setdefault(place, []).append(index)
        else:
            due_ms = due_of(record)
            targets = b"".join([due_target(due_ms) if due_ms else b"", *(TARGET.pack(*target) for target in ids)])
            records.append((encode_moved(synced, record, targets), position, ids))
    return Relocation(segment, live_bytes, records, [(slots[place], found) for place, found in doubtful.items()])


def _absent(
    read_span: Callable[[int, int], bytes], slot: SlotReference, entries: Entries, indexes: Sequence[int]
) -> list[int]:
    """Return which of a slot's messages are not where their entries say."""
    absent: list[int] = []

    def missed(_position: int, index: int) -> None:
        absent.append(index)

    read_messages(read_span, slot.queue_number, slot.first, entries, indexes, StoredMessages(), missed)
    return absent


def _needs_more(
    read_entries: Callable[[SlotReference], ReadEntries],
    segment: int,
    slots: Sequence[SlotReference],
    limit_bytes: int,
) -> bool:
    """Return whether one queue alone needs too much, which is found out with little memory: it has each record once."""
    needed: dict[int, int] = {}
    for slot in slots:
        positions, sizes, _ = read_entries(slot)
        own_bytes = sum([sizes[index] for index in slot.indexes if positions[index] >> OFFSET_BITS == segment])
        needed[slot.queue_number] = needed.get(slot.queue_number, 0) + own_bytes
        if needed[slot.queue_number] > limit_bytes:
            return True
    return False


def append_relocation(log: MessageLog, relocation: Relocation) -> None:
    """Append the copies to the log and note where each went."""
    for record, origin, needed in relocation.records:
        position = log.append(record)
        due_ms = due_of(record)
        relocation.moves.extend(Move(*target, origin, position, len(record), due_ms) for target in needed)
    relocation.end = log.position
