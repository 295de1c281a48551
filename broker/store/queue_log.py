"""Queue logs: the position of each message's record, by queue and message id. Recovery rebuilds them from the log
after a crash or disk damage.

A chunk is a file for 65,536 consecutive messages of one queue. It is created when enough of these messages are paged
out, or by a checkpoint that needs it. Each message has a place of fixed width, so one call reads the entries of a slot:

    chunk header                              place of message id, at (id % 65,536 + 1) * 24: see `queue_entry`
    0   8s  magic "SLOTMQ\\0Q"
    8   u16 format version
    10  u16 bytes of a place
    12  u32 chunk number
    16  u64 queue number
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Final

from broker.store.damage import StoreFailed, read_around
from broker.store.entry_buffer import EntryBuffer, IdRanges
from broker.store.files import File, Files
from broker.store.open_files import OpenFiles
from broker.store.queue_entry import (
    CELL_IDS,
    ENTRY_BYTES,
    Entries,
    Entry,
    pack_entries,
    split_groups,
    unpack_due,
    unpack_entries,
)

CHUNK_IDS: Final = 65_536

_HEADER: Final = Struct(">8sHHIQ")
_MAGIC: Final = b"SLOTMQ\0Q"
_FORMAT: Final = 1
_NAME: Final = re.compile(r"(\d{10,})-(\d{8,})\.queue")  # of `_path`; the number of a holding level has 17 digits

assert _HEADER.size == ENTRY_BYTES == 24
assert CHUNK_IDS % CELL_IDS == 0


class QueueLogs:
    """The queue logs of one vhost, in one folder.

    ``write`` and ``drop`` are for the loop, ``sync`` for the checkpoint thread, ``reclaim`` for both, ``read`` for any.

    Units: ``written`` counts the pieces that were written to files.
    Invariant: a chunk that a kept checkpoint refers to is not removed. A chunk is either a file or in the buffer.
    """

    def __init__(self, files: Files, folder: Path, *, sync: bool) -> None:
        self._files = files
        self._folder = folder
        self._sync = sync
        self.readers = OpenFiles(files)
        self._lock = Lock()  # no chunk is written while it is removed, or moved to its file
        self._buffer = EntryBuffer()
        self._live: dict[int, IdRanges] = {}
        self._chunks: dict[int, set[int]] = {}  # on disk, by queue number
        self._tops: dict[tuple[int, int], int] = {}  # the id after the last entry of each chunk that began empty
        self._begun: set[tuple[int, int]] = set()  # chunks whose header this process wrote
        self._checked: set[tuple[int, int]] = set()  # chunks whose header was read
        self._unsynced: set[tuple[int, int]] = set()  # written since the last sync, of durable queues
        self._dropped: dict[tuple[int, int], int] = {}  # chunks to be removed, with the log position of their deletion
        self._missing: set[tuple[int, int]] = set()  # chunks that were missing at startup
        self.written = 0
        # The file that was written last, open until a sync: usually the next slots of its queue are written to it too.
        self._newest: tuple[tuple[int, int], File] | None = None
        for name in files.list(folder):
            match = _NAME.fullmatch(name)
            if match:
                self._chunks.setdefault(int(match[1]), set()).add(int(match[2]))

    def check(self, queue_number: int, first: int, end: int) -> bool:
        """Return whether no chunk of the ids first <= id < end is or was missing; remove chunks without a header."""
        chunks = range(first // CHUNK_IDS, (end - 1) // CHUNK_IDS + 1)
        for chunk in chunks:
            if chunk not in self._chunks.get(queue_number, ()):
                if (queue_number, chunk) not in self._buffer:
                    self._missing.add((queue_number, chunk))
            elif not self._has_header(queue_number, chunk):
                self._remove(queue_number, chunk)
                self._missing.add((queue_number, chunk))
        return self._missing.isdisjoint([(queue_number, chunk) for chunk in chunks])

    def withdraw(self) -> None:
        """Remove the chunks that were missing and have been written since: this start is refused, and the next one must
        find them missing again. Raises: StoreFailed.
        """
        for queue_number, chunk in self._missing:
            if chunk in self._chunks.get(queue_number, ()):
                self._remove(queue_number, chunk)

    def write(
        self,
        queue_number: int,
        first: int,
        entries: Entries,
        due_ms: Sequence[int] = (),
        *,
        durable: bool = True,
    ) -> None:
        """Write the entries of the ids from `first` on, into the page cache, or into the buffer while they are few.

        They may be ahead of the log: recovery uses them only if a checkpoint or a replayed record has their ids.
        Shapes: NO_ENTRY stands for messages that need no entry; `due_ms` is as for `pack_entries`. The entries of a
            queue that is not `durable` are never synced.
        Cost: `pack_entries`, usually at most one write per chunk, and up to two reads unless the ids are the highest.
        """
        block = pack_entries(queue_number, first, entries, due_ms)
        stop = first + len(entries[0])
        with self._lock:
            self._live.setdefault(queue_number, IdRanges()).add(first, stop)
            for chunk, start, end in _chunks(first, stop):
                piece = block[(start - first) * ENTRY_BYTES : (end - first) * ENTRY_BYTES]
                begin, piece = self._with_neighbours(queue_number, chunk, start, end, piece)
                self._write(queue_number, chunk, _place(begin), piece, durable=durable)

    def move(self, queue_number: int, first: int, entries: Entries, due_ms: Sequence[int] = ()) -> None:
        """Overwrite the entries of the ids from `first` on that are still needed. Shapes: as for `write`."""
        live = self._live.get(queue_number)
        positions, sizes = entries
        for start, stop in [] if live is None else live.within(first, first + len(positions)):
            chosen = slice(start - first, stop - first)
            self.write(queue_number, start, (positions[chosen], sizes[chosen]), due_ms[chosen])

    def repair(self, queue_number: int, message_id: int, seen: Entry, entry: Entry) -> None:
        """Overwrite one damaged entry, unless it was written in the meantime or is no longer needed.

        Shapes: `seen` is the damaged entry, as `read` returned it.
        """
        positions, sizes = self.read(queue_number, message_id, message_id + 1)
        if (positions[0], sizes[0]) == seen:
            self.move(queue_number, message_id, ([entry[0]], [entry[1]]))

    def mark_needed(self, queue_number: int, first: int, end: int) -> None:
        """Record that the entries of the ids first <= id < end, which are on disk, are needed."""
        self._live.setdefault(queue_number, IdRanges()).add(first, end)

    def read(self, queue_number: int, first: int, end: int) -> Entries:
        """Return the entries of the ids first <= id < end: NO_ENTRY for a missing or damaged one."""
        positions: list[int] = []
        sizes: list[int] = []
        for chunk, start, stop in _chunks(first, end):
            begin, block = self._read_cells(queue_number, chunk, start, stop)
            more = unpack_entries(queue_number, begin, block, start - begin, stop - begin)
            positions += more[0]
            sizes += more[1]
        return positions, sizes

    def read_cached(self, queue_number: int, first: int, end: int) -> Entries | None:
        """Return the result of `read` if it needs a single chunk without disk access, or None otherwise."""
        chunk = first // CHUNK_IDS
        if (end - 1) // CHUNK_IDS != chunk:
            return None
        begin, stop = _cells(first, end)
        size = (stop - begin) * ENTRY_BYTES
        block = self._buffer.read(queue_number, chunk, _place(begin), size)
        if block is None:
            if chunk not in self._chunks.get(queue_number, ()):
                return None
            try:
                with self.readers.borrow(self._path(queue_number, chunk)) as file:
                    block = file.read_cached(_place(begin), size)
            except StoreFailed:
                return None
            if block is None:
                return None
            block = block.ljust(size, b"\0")
        return unpack_entries(queue_number, begin, block, first - begin, end - begin)

    def read_due(self, queue_number: int, first: int, end: int) -> list[int]:
        """Return when the messages first <= id < end are due, with 0 for entries without a moment."""
        due_ms: list[int] = []
        for chunk, start, stop in _chunks(first, end):
            begin, block = self._read_cells(queue_number, chunk, start, stop)
            due_ms += unpack_due(queue_number, begin, block, start - begin, stop - begin)
        return due_ms

    def _read_cells(self, queue_number: int, chunk: int, first: int, end: int) -> tuple[int, bytes]:
        """Return the first id of the cells that contain the ids first <= id < end of a chunk, and the cells."""
        begin, stop = _cells(first, end)
        return begin, self._block(queue_number, chunk, _place(begin), (stop - begin) * ENTRY_BYTES)

    def _block(self, queue_number: int, chunk: int, at: int, size: int) -> bytes:
        """Return a piece of a chunk, with zeros for missing and unreadable bytes."""
        buffered = self._buffer.read(queue_number, chunk, at, size)
        if buffered is not None:
            return buffered
        block = b""
        if chunk in self._chunks.get(queue_number, ()):
            try:
                with self.readers.borrow(self._path(queue_number, chunk)) as file:
                    block, _ = read_around(file.read_at, at, size)
            except StoreFailed:  # it was removed: the next write creates it again
                self._begun.discard((queue_number, chunk))
        return block.ljust(size, b"\0")

    def drop(self, queue_number: int, first: int, end: int, position: int) -> None:
        """Release the entries of the ids first <= id < end, whose slot was deleted at log position `position`."""
        live = self._live.get(queue_number)
        if live is None:
            return
        live.remove(first, end)
        with self._lock:
            for chunk, start, stop in _chunks(first, end):
                key = (queue_number, chunk)
                if not live.overlaps(chunk * CHUNK_IDS, (chunk + 1) * CHUNK_IDS):
                    self._drop_chunk(key, position)
                elif key not in self._unsynced:
                    self._buffer.drop(queue_number, chunk, _place(start), _place(start) + (stop - start) * ENTRY_BYTES)

    def forget(self, queue_number: int, position: int) -> None:
        """Release all entries of a queue that was deleted at log position `position`."""
        self._live.pop(queue_number, None)
        with self._lock:
            for chunk in (*self._chunks.get(queue_number, ()), *self._buffer.chunks(queue_number)):
                self._drop_chunk((queue_number, chunk), position)

    def _drop_chunk(self, key: tuple[int, int], position: int) -> None:
        """Discard a buffered chunk; but if a checkpoint may refer to it, now or once synced, schedule its removal."""
        self._tops.pop(key, None)
        if key in self._buffer and key not in self._unsynced:
            self._buffer.discard(*key)
        else:
            self._dropped[key] = position

    def sync(self) -> None:
        """Write what is buffered for durable queues to files; unless syncs are off, sync what was written for them."""
        with self._lock:
            unsynced = sorted(self._unsynced)
            self._close_newest()  # so that an idle vhost has no open file, and a removed file is created again
        for queue_number, chunk in unsynced:
            file: File | None = None
            with self._lock:  # the loop may remove chunks at any time
                self._unsynced.discard((queue_number, chunk))  # writes from here on belong to the next call
                pieces = self._buffer.pieces(queue_number, chunk)
                if pieces:
                    self._write_file(queue_number, chunk, pieces)
                self._close_newest()
                if self._sync and chunk in self._chunks.get(queue_number, ()):
                    file = self._files.open(self._path(queue_number, chunk), write=True)
            if file is not None:
                try:
                    file.sync()
                finally:
                    file.close()
        if unsynced and self._sync:
            self._files.sync_folder(self._folder)

    def reclaim(self, below: int) -> int:
        """Remove the chunks released before log position `below`, and return how many files were removed."""
        removed = 0
        with self._lock:
            dropped = list(self._dropped.items())
        for key, position in dropped:
            with self._lock:
                if position < below and self._dropped.get(key) == position:
                    del self._dropped[key]
                    if key[1] in self._chunks.get(key[0], ()):
                        self._remove(*key)
                        removed += 1
        return removed

    def holds_before(self, below: int) -> bool:
        """Return whether chunks released before log position `below` still exist."""
        with self._lock:
            return any(position < below for position in self._dropped.values())

    def drop_unneeded(self, end: int) -> None:
        """Release the chunks without a needed entry, at startup, after `mark_needed` was called for all needed
        entries. They stay until no earlier checkpoint is kept, like the chunks of slots deleted at the end of the log,
        because recovery may have to start from such a checkpoint again.
        """
        for queue_number, chunks in self._chunks.items():
            live = self._live.get(queue_number, IdRanges())
            for chunk in sorted(chunks):
                if not live.overlaps(chunk * CHUNK_IDS, (chunk + 1) * CHUNK_IDS):
                    self._dropped[queue_number, chunk] = end

    def close(self) -> None:
        """Close the files; no file is removed after this call."""
        self.readers.close()
        with self._lock:
            self._close_newest()
            self._chunks.clear()

    def _with_neighbours(self, queue_number: int, chunk: int, first: int, end: int, block: bytes) -> tuple[int, bytes]:
        """Return the first id and the bytes of the entries first <= id < end of a chunk, extended by the split entries
        of groups that they overlap in part.
        """
        key = (queue_number, chunk)
        if chunk not in self._chunks.get(queue_number, ()) and key not in self._buffer:
            self._tops[key] = end
            return first, block
        top = self._tops.get(key)
        if top is not None:
            self._tops[key] = max(top, end)
            if first >= top:
                return first, block
        begin = first
        for cell_first in sorted({first - first % CELL_IDS, end - 1 - (end - 1) % CELL_IDS}):
            cell_end = cell_first + CELL_IDS
            if first <= cell_first and cell_end <= end:
                continue
            _, cell = self._read_cells(queue_number, chunk, cell_first, cell_end)
            whole = split_groups(queue_number, cell_first, cell, first - cell_first, end - cell_first)
            if whole is cell:
                continue
            if cell_first < first:
                begin = cell_first
                block = whole[: (first - cell_first) * ENTRY_BYTES] + block
            if end < cell_end:
                block += whole[(end - cell_first) * ENTRY_BYTES :]
        return begin, block

    def _write(self, queue_number: int, chunk: int, at: int, block: bytes, *, durable: bool) -> None:
        """Write entries to the file of a chunk, or into the buffer while the chunk needs no file."""
        key = (queue_number, chunk)
        has_file = chunk in self._chunks.get(queue_number, ())
        if has_file or not self._buffer.add(queue_number, chunk, at, block):
            self._write_file(queue_number, chunk, [*self._buffer.pieces(queue_number, chunk), (at, block)])
        self._dropped.pop(key, None)
        if durable:
            self._unsynced.add(key)

    def _write_file(self, queue_number: int, chunk: int, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Write pieces to the file of a chunk, and remove the chunk from the buffer."""
        key = (queue_number, chunk)
        if self._newest is None or self._newest[0] != key:
            self._close_newest()
            self._newest = (key, self._files.open(self._path(queue_number, chunk), create=True))
        file = self._newest[1]
        try:
            if key not in self._begun:
                # Also in an existing file: after a power loss its beginning may be missing.
                file.write_at(0, _header(queue_number, chunk))
            for at, block in pieces:
                file.write_at(at, block)
        except StoreFailed:
            self._close_newest()
            raise
        self.written += len(pieces)
        self._begun.add(key)
        self._chunks.setdefault(queue_number, set()).add(chunk)
        self._buffer.discard(queue_number, chunk)  # not earlier: readers look in the buffer first, and take no lock

    def _close_newest(self) -> None:
        """Close the file that was written last. Raises: StoreFailed."""
        if self._newest is not None:
            file = self._newest[1]
            self._newest = None
            file.close()

    def _has_header(self, queue_number: int, chunk: int) -> bool:
        """Return whether a chunk has its header. Cost: a read, unless this process has written or checked it."""
        key = (queue_number, chunk)
        if key not in self._begun and key not in self._checked:
            try:
                with self.readers.borrow(self._path(queue_number, chunk)) as file:
                    begin = file.read_at(0, ENTRY_BYTES)
            except StoreFailed:
                return False
            if begin != _header(queue_number, chunk):
                return False
            self._checked.add(key)
        return True

    def _remove(self, queue_number: int, chunk: int) -> None:
        path = self._path(queue_number, chunk)
        if self._newest is not None and self._newest[0] == (queue_number, chunk):
            self._close_newest()
        self._files.remove(path)
        self.readers.forget(path)  # not earlier: a reader could open the old file again, and keep it open
        self._begun.discard((queue_number, chunk))
        self._checked.discard((queue_number, chunk))
        self._unsynced.discard((queue_number, chunk))
        self._tops.pop((queue_number, chunk), None)
        chunks = self._chunks[queue_number]
        chunks.remove(chunk)
        if not chunks:
            del self._chunks[queue_number]

    def _path(self, queue_number: int, chunk: int) -> Path:
        return self._folder / f"{queue_number:010d}-{chunk:08d}.queue"


def _header(queue_number: int, chunk: int) -> bytes:
    return _HEADER.pack(_MAGIC, _FORMAT, ENTRY_BYTES, chunk, queue_number)


def _chunks(first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (chunk, first id, end) for each chunk that contains some of the ids first <= id < end."""
    start = first
    while start < end:
        chunk = start // CHUNK_IDS
        stop = min(end, (chunk + 1) * CHUNK_IDS)
        yield chunk, start, stop
        start = stop


def _cells(first: int, end: int) -> tuple[int, int]:
    """Return the first id and the end of the cells that contain the ids first <= id < end."""
    return first - first % CELL_IDS, end + -end % CELL_IDS


def _place(message_id: int) -> int:
    """Return the offset of a message's place in the file of its chunk."""
    return (message_id % CHUNK_IDS + 1) * ENTRY_BYTES
