"""Stored slots: read the entries of messages from the queue log, then their records; search the log for records that
are not at the positions of their entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from broker.event_log import get_logger
from broker.store.damage import CorruptRecord, StoreFailed, read_around
from broker.store.entry_search import EntrySearch
from broker.store.files import Files
from broker.store.log_scan import LogFolder
from broker.store.message_log import MessageLog
from broker.store.queue_entry import Entries, Entry
from broker.store.queue_log import QueueLogs
from broker.store.reading import MessageBuilder, read_messages, read_places
from broker.store.record import HEAD_BYTES, body_bytes
from broker.store.segment import OFFSET_BITS
from broker.store.spill import Spill, is_spilled

NEAR_IDS: Final = 64  # ids that are at most this far apart are read together


def spans_within(
    read: Callable[[int, int], Entries], ids: Sequence[int], limit_bytes: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Group ids into spans to read, and yield (first id, end, wanted indexes) of each.

    Shapes: wanted are the first `ids` whose records fit into `limit_bytes`, at least one; read(first, end) returns the
        entries of a span.
    Cost: one read of entries per span; no message is read.
    """
    spans: list[list[int]] = []
    for message_id in sorted(ids):
        if spans and message_id - spans[-1][-1] <= NEAR_IDS:
            spans[-1].append(message_id)
        else:
            spans.append([message_id])
    sizes: dict[int, int] = {}
    for span in spans:
        lengths = read(span[0], span[-1] + 1)[1]
        sizes.update((message_id, lengths[message_id - span[0]]) for message_id in span)
    chosen: set[int] = set()
    for message_id in ids:
        limit_bytes -= sizes[message_id]
        if chosen and limit_bytes < 0:
            break
        chosen.add(message_id)
    for span in spans:
        wanted = [message_id - span[0] for message_id in span if message_id in chosen]
        if wanted:
            yield span[0], span[-1] + 1, wanted


PLAIN_MAX_BYTES: Final = 64 << 20  # of the log, from the first to the last record of a slot, for a read in one piece
CACHED_MAX_BYTES: Final = 1 << 20  # the same for a read on the loop, within a millisecond

_log = get_logger()
Segments = Iterable[int] | None
T = TypeVar("T")


class StoredSlots:
    """The reader of messages on disk, for any thread.

    If an entry is damaged, or points to no record of its message, the log is searched for the record before the message
    counts as lost. `repair`, on the loop, writes the entries that were found to the queue log.
    """

    def __init__(
        self, files: Files, folder: Path, log: MessageLog, spill: Spill, queues: QueueLogs, *, quarantine: bool
    ) -> None:
        self._files = files
        self._folder = folder
        self._log = log
        self._spill = spill
        self._queues = queues
        self._quarantine = quarantine
        self._found: deque[tuple[int, int, Entry, Entry]] = deque()
        self._reasons: dict[int, str] = {}  # why parts of a segment cannot be read

    def read(
        self,
        queue_number: int,
        first: int,
        end: int,
        wanted: Iterable[int] | None,
        segments: Segments,
        builder: MessageBuilder[T],
    ) -> list[T | None]:
        """Read messages of one queue back; index 0 is id `first`, unwanted ones are None. *Blocking.* Shapes: `wanted`
        lists indexes, None means all; every wanted message must have been paged out. `segments` are those that the slot
        keeps on disk: the record of a damaged entry is sought there, or in the whole log if None. `builder` builds
        the messages. Raises: CorruptRecord if a message differs from what was written, unless the store was opened with
        quarantine: then it is None too, and logged. StoreFailed.
        Cost: one read of the queue log per 65,536 ids, one of the log per run of neighbours.
        """
        wanted = range(end - first) if wanted is None else list(wanted)
        entries = self._queues.read(queue_number, first, end)
        plain = self._read_plain(queue_number, first, entries, wanted, builder, self.read_span, PLAIN_MAX_BYTES)
        return plain or self._read_carefully(queue_number, first, end, wanted, segments, builder)

    def read_cached(
        self, queue_number: int, first: int, end: int, wanted: Sequence[int], builder: MessageBuilder[T]
    ) -> list[T | None]:
        """Return the result of `read` if the page cache has all of it, or an empty list otherwise. Never waits. Cost:
        under a millisecond; for a slot whose records are far apart, out of order or damaged the list is empty, too.
        """
        entries = self._queues.read_cached(queue_number, first, end)
        if entries is None:
            return []
        return self._read_plain(queue_number, first, entries, wanted, builder, self._cached_span, CACHED_MAX_BYTES)

    def _read_plain(
        self,
        queue_number: int,
        first: int,
        entries: Entries,
        wanted: Sequence[int],
        builder: MessageBuilder[T],
        read_span: Callable[[int, int], bytes],
        extent_max_bytes: int,
    ) -> list[T | None]:
        """Return the wanted messages if their records are intact, and those of the whole slot lie in the order of their
        ids within `extent_max_bytes` of the log or the spill, as is usual; otherwise return an empty list.
        """
        positions, sizes = entries
        extent_bytes = positions[-1] + sizes[-1] - positions[0]
        if 0 in sizes or extent_bytes > extent_max_bytes or max(sizes) > extent_bytes or positions != sorted(positions):
            return []
        missing: list[int] = []
        messages = read_messages(
            read_span,
            queue_number,
            first,
            entries,
            wanted,
            builder,
            lambda _position, index: missing.append(index),
        )
        return [] if missing else messages

    def _read_carefully(
        self,
        queue_number: int,
        first: int,
        end: int,
        wanted: Sequence[int],
        segments: Segments,
        builder: MessageBuilder[T],
    ) -> list[T | None]:
        """Return the messages of a slot, and search for records that are not at the positions of their entries."""
        entries, failed, indexes = self._entries(queue_number, first, end, wanted)

        def missed(_position: int, index: int) -> None:
            failed.append(index)

        messages = read_messages(self.read_span, queue_number, first, entries, indexes, builder, missed)
        if failed:
            failed.sort()
            corrected = self.search(queue_number, first, entries, failed, segments)
            failed = [index for index in failed if index not in corrected]
            again = read_messages(self.read_span, queue_number, first, entries, sorted(corrected), builder, missed)
            for index in corrected:
                messages[index] = again[index]
            for index in failed:
                self._report(entries[0][index], queue_number, first + index)
        return messages

    def read_some(
        self, queue_number: int, ids: Sequence[int], segments: Segments, limit_bytes: int, builder: MessageBuilder[T]
    ) -> dict[int, T | None]:
        """Read messages from anywhere in a queue by id, as `read` does. *Blocking.*

        Shapes: it reads the first `ids` whose records fit into `limit_bytes`, at least one; None if unreadable.
        """
        found: dict[int, T | None] = {}
        for first, end, wanted in spans_within(partial(self._queues.read, queue_number), ids, limit_bytes):
            messages = self.read(queue_number, first, end, wanted, segments, builder)
            found.update((first + index, messages[index]) for index in wanted)
        return found

    def read_due(self, queue_number: int, first: int, end: int) -> list[int]:
        """Return when delayed messages are due, with 0 for entries without a moment. *Blocking.*"""
        return self._queues.read_due(queue_number, first, end)

    def body_sizes(
        self,
        queue_number: int,
        first: int,
        end: int,
        wanted: Iterable[int] | None = None,
        segments: Segments = None,
    ) -> list[int]:
        """Return the body sizes of messages of one queue; index 0 is id `first`. *Blocking.*

        Shapes: as for `read`; 0 for unwanted messages. Raises: CorruptRecord if the record of a message is missing,
            unless the store was opened with quarantine: then the size is 0, and this is logged. StoreFailed.
        Cost: reads 36 bytes a message; short bodies are read too, where another call would cost more.
        """
        entries, failed, indexes = self._entries(queue_number, first, end, wanted)
        sizes = [0] * (end - first)
        failed += self._measure(entries, indexes, sizes)
        if failed:
            corrected = self.search(queue_number, first, entries, failed, segments)
            failed = [index for index in failed if index not in corrected] + self._measure(entries, corrected, sizes)
            for index in failed:
                self._report(entries[0][index], queue_number, first + index)
        return sizes

    def search(
        self, queue_number: int, first: int, entries: Entries, indexes: Iterable[int], segments: Segments
    ) -> list[int]:
        """Search the given segments of the log, or all if None, for records of messages, and correct `entries`.

        Return the indexes of the corrected entries, which `repair` also writes. Raises: StoreFailed.
        """
        wanted = {first + index: index for index in indexes}
        log = LogFolder(self._files, self._folder, None if segments is None else frozenset(segments))
        search = EntrySearch(lambda number, message_id: number == queue_number and message_id in wanted)
        search.walk(log, log.segments)
        positions, sizes = entries
        found = []
        for (_, message_id), entry in search.found.items():
            index = wanted[message_id]
            seen = (positions[index], sizes[index])
            if entry != seen:
                self._found.append((queue_number, message_id, seen, entry))
                positions[index], sizes[index] = entry
                found.append(index)
        if found:
            _log.warning("store.entries_rebuilt", queue=queue_number, messages=len(found))
        return found

    def repair(self) -> None:
        """Write the entries that searches have found to the queue logs; on the loop. Raises: StoreFailed."""
        while self._found:
            self._queues.repair(*self._found.popleft())

    def read_span(self, position: int, size: int) -> bytes:
        """Return a piece of the log or the spill, with zeros for unreadable bytes; nothing if its file is missing."""
        source = self._spill if is_spilled(position >> OFFSET_BITS) else self._log
        try:
            return source.read_span(position, size)
        except StoreFailed as error:
            self._reasons[position >> OFFSET_BITS] = error.reason
            if not source.has(position >> OFFSET_BITS):
                return b""
        block, _ = read_around(source.read_span, position, size)
        return block

    def _cached_span(self, position: int, size: int) -> bytes:
        """Return a piece of the log or the spill, or nothing if that needs the disk."""
        source = self._spill if is_spilled(position >> OFFSET_BITS) else self._log
        try:
            return source.read_cached(position, size) or b""
        except StoreFailed:  # the read from disk reports it
            return b""

    def _entries(
        self, queue_number: int, first: int, end: int, wanted: Iterable[int] | None
    ) -> tuple[Entries, list[int], Sequence[int]]:
        """Return the entries of a slot, and the indexes of wanted messages without and with an entry."""
        positions, sizes = self._queues.read(queue_number, first, end)
        indexes = range(end - first) if wanted is None else list(wanted)
        if 0 not in sizes:
            return (positions, sizes), [], indexes
        missing = [index for index in indexes if not sizes[index]]
        return (positions, sizes), missing, [index for index in indexes if sizes[index]]

    def _measure(self, entries: Entries, indexes: Sequence[int], found: list[int]) -> list[int]:
        """Fill in body sizes; return the indexes of messages whose records cannot be read."""
        positions, lengths = entries
        failed = []
        heads = [(positions[i], min(lengths[i], HEAD_BYTES), (lengths[i], i)) for i in indexes]
        for _, head, (size, index) in read_places(self.read_span, heads):
            try:
                found[index] = body_bytes(head, size)
            except ValueError:
                failed.append(index)
        return failed

    def _report(self, position: int, queue_number: int, message_id: int) -> None:
        """Raise CorruptRecord; with quarantine, log the damage instead."""
        source = self._spill if is_spilled(position >> OFFSET_BITS) else self._log
        reason = self._reasons.get(position >> OFFSET_BITS)
        because = f": {reason}" if reason else ""
        error: CorruptRecord = source.corrupt(
            position, f"message {message_id} of queue {queue_number} is missing{because}"
        )
        if not self._quarantine:
            raise error
        _log.error("store.message_unreadable", queue=queue_number, message=message_id, reason=str(error))
