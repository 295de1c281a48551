"""The rows of one slot file. Messages of a level are chosen on the loop, then read and copied in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.core.message.message import OVERHEAD_BYTES, Message
from broker.core.queue.level import Level
from broker.delivery.message_loader import MessageLoader
from broker.slot_files.slot_file import PERSISTENT, REDELIVERED
from broker.slots.slot import Slot
from broker.store.store import VhostStore

if TYPE_CHECKING:
    from broker.slot_files.slot_file_writer import SlotFileWriter

ROWS_AT_ONCE: Final = 200  # rows copied before other threads may run: half a millisecond


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one slot for a slot file. Shapes: `messages` is None if the slot is on disk; its `segments` are then
    pinned until `unpin`. `end` is the id after the range of the piece; messages missing from the range are settled.
    """

    slot: Slot
    indexes: Sequence[int]
    end: int
    messages: list[Message | None] | None
    redelivered: frozenset[int]
    segments: tuple[int, ...]


def gather(
    level: Level,
    firsts: Iterable[int],
    *,
    above: int = 0,
    below: int,
    rows_max: int,
    bytes_max: int,
    mark_redelivered: bool = True,
) -> list[Piece]:
    """Return up to `rows_max` unsettled messages of a level, from slots up to the one that reaches `bytes_max`.

    Shapes: `firsts` are the first ids of the slots; deleted slots are skipped. Message ids are above <= id < below.
    Units: `bytes_max` limits the estimated size of headers and bodies.
    Cost: O(slots), and a copy of the references to the returned messages.
    """
    pieces: list[Piece] = []
    rows = size_bytes = 0
    for first in firsts:
        slot = level.manager.slots.get(first)
        if slot is None:
            continue
        upto = min(slot.length, below - first)
        start = max(above - first, 0)
        indexes: Sequence[int] = range(start, upto)
        if slot.acks.count:
            indexes = list(slot.acks.unsettled(start, upto))
        whole = len(indexes) <= rows_max - rows
        if not whole:
            indexes = indexes[: rows_max - rows]
        if indexes:
            end = first + (upto if whole else indexes[-1] + 1)
            pieces.append(_piece(level, slot, indexes, end, mark_redelivered=mark_redelivered))
            rows += len(indexes)
            size_bytes += max(slot.bytes // slot.length - OVERHEAD_BYTES, 0) * len(indexes)
        if rows >= rows_max or size_bytes >= bytes_max:
            break
    return pieces


def unpin(store: VhostStore, pieces: Sequence[Piece]) -> None:
    """Unpin the segments of the pieces."""
    for piece in pieces:
        store.unpin(piece.segments)


def copy_pieces(
    store: VhostStore,
    number: int,
    pieces: Sequence[Piece],
    begin: Callable[[int], SlotFileWriter],
    bytes_max: int,
    ahead_ms: int,
) -> tuple[SlotFileWriter | None, int]:
    """Write the messages of the pieces into one slot file, up to about `bytes_max`. *Blocking.*

    Return the complete file, or None if no message could be read, and the id at which to continue with the next file.
    `begin` creates a file for a first message id. Rows contain wall-clock time, the broker's clock less `ahead_ms`.
    Raises: CorruptRecord, StoreFailed; the file is abandoned.
    """
    file = begin(pieces[0].slot.first + pieces[0].indexes[0])
    try:
        end = _copy(store, number, pieces, file, bytes_max, ahead_ms)
        if file.rows:
            file.complete(end)  # finds a full disk, so that the caller can retry; in `finish`, it would end the broker
    except BaseException:
        file.abandon()
        raise
    if file.rows:
        return file, end
    file.abandon()
    return None, end


def _copy(
    store: VhostStore, number: int, pieces: Sequence[Piece], file: SlotFileWriter, bytes_max: int, ahead_ms: int
) -> int:
    end = file.meta.first
    add = file.add
    until_pause = ROWS_AT_ONCE
    for piece in pieces:
        first, redelivered = piece.slot.first, piece.redelivered
        for index, message in zip(piece.indexes, _contents(store, number, piece), strict=True):
            if message is None:  # the message could not be read; the error was logged
                continue
            if file.size_bytes >= bytes_max and file.rows:
                return end
            flags, route = message.facts.persistent * PERSISTENT, message.envelope.route
            if index in redelivered:
                flags |= REDELIVERED
            add(first + index, message.timestamp_ms - ahead_ms, flags, route, message.header, message.body)
            end = first + index + 1
            until_pause -= 1
            if not until_pause:
                until_pause = ROWS_AT_ONCE
                time.sleep(0)
        end = piece.end
    return end


def _piece(level: Level, slot: Slot, indexes: Sequence[int], end: int, *, mark_redelivered: bool) -> Piece:
    contents = slot.contents
    redelivered: frozenset[int] = frozenset()
    if mark_redelivered:
        redelivered = frozenset([index for index in indexes if slot.redelivered(index)])
    if contents is not None:
        if isinstance(indexes, range):
            return Piece(slot, indexes, end, contents[indexes.start : indexes.stop], redelivered, ())
        return Piece(slot, indexes, end, [contents[index] for index in indexes], redelivered, ())
    segments = tuple(slot.segments)
    for segment in segments:
        level.store.add_live(segment, 1)  # keep the files until they are read, even if the slot is deleted
    return Piece(slot, indexes, end, None, redelivered, segments)


def _contents(store: VhostStore, number: int, piece: Piece) -> Sequence[Message | None]:
    """Return the messages of a piece, from memory or disk. *Blocking.*"""
    if piece.messages is not None:
        return piece.messages
    slot = piece.slot
    found = store.slots.read(number, slot.first, slot.end, piece.indexes, piece.segments, MessageLoader())
    return [found[index] for index in piece.indexes]
