"""The vhost log: segments of records, appended on the loop, written and synced in a thread.

A batch is everything that was appended since the previous batch. It begins with a mark (or, in a new segment, with the
header) that says how far the log was synced when the batch was taken: this lets recovery distinguish corruption from a
torn tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Final

from crc32c import crc32c

from broker.store.checkpoint import LogNeed
from broker.store.damage import CorruptRecord, StoreFailed
from broker.store.direct_writer import DirectWriter
from broker.store.files import File, Files
from broker.store.open_files import OpenFiles
from broker.store.record import (
    FRONT,
    HEAD_BYTES,
    MARK,
    MARK_BYTES,
    MARK_TAIL,
    PREFIX_BYTES,
    TransactionHead,
    encode_inner,
)
from broker.store.segment import (
    AHEAD_MAX_BYTES,
    HEADER_BYTES,
    OFFSET_BITS,
    OFFSET_MASK,
    TOKEN_BYTES,
    SegmentHeader,
    encode_header,
    segment_path,
)

SEGMENT_MAX_BYTES: Final = 1 << 31  # an offset has 32 bits, and the last record of a segment may cross its end
RECORD_MAX_BYTES: Final = 1 << 31
APART_BYTES: Final = 4 << 10  # a piece of this size is a block of its own: that costs less than to copy it
LARGE_BYTES: Final = 32 << 10  # with a piece of this size, a large run bypasses the page cache
BLOCK_BYTES: Final = 128 << 10  # of records that are joined: the processor's second-level cache still contains them
SMALL_BYTES: Final = 16 << 10  # after a larger batch, zeros ahead take longer than the journal write that they save
pack_mark: Final = Struct(FRONT.format + MARK_TAIL.format[1:]).pack


class SegmentRun:
    """The part of a batch in one segment: blocks of records, after the segment's header or a mark.

    Shapes: a block is a part of a record, or some records and parts; ``large`` is set if one has LARGE_BYTES.
    """

    def __init__(self, segment: int, offset: int, previous_end: int, token: bytes) -> None:
        self.segment = segment
        self.offset = offset
        self.previous_end = previous_end
        self.token = token
        self.blocks: list[bytes] = []
        self.large = False

    def add(self, block: bytes) -> None:
        self.blocks.append(block)
        if len(block) >= LARGE_BYTES:
            self.large = True


class Batch:
    """The records of one write and one sync. Shapes: ``end`` is the position after them."""

    def __init__(self, end: int, runs: list[SegmentRun], size_bytes: int) -> None:
        self.end = end
        self.runs = runs
        self.size_bytes = size_bytes


class Group:
    """The open group of the log. A large group moves its records into blocks while it is open.

    Shapes: `records` are in no block yet; they have `size_bytes`. `place` is the index of the block for the head of the
        transaction, or -1 while no record is in a block. `position` is that of the head.
    """

    def __init__(self, position: int, synced: int) -> None:
        self.position = position
        self.head = TransactionHead(synced)
        self.place = -1
        self.records: list[bytes] = []
        self.size_bytes = 0

    def add(self, record: bytes) -> None:
        self.records.append(encode_inner(record))
        self.size_bytes += len(record)

    def begin_blocks(self, place: int) -> None:
        self.place = place

    def take(self) -> list[bytes]:
        """Return the records that are in no block, and include them in the head."""
        records, self.records = self.records, []
        self.size_bytes = 0
        self.head.add(records)
        return records


class Segments:
    """The segments of one folder; any thread reads them.

    Shapes: `segments` maps a segment number to its bytes, `live` to the number of slots that need the segment. The
        numbers begin with `lowest`, which is subtracted in file names.
    """

    def __init__(self, files: Files, folder: Path, *, lowest: int = 0) -> None:
        self._files = files
        self._folder = folder
        self._lowest = lowest
        self.readers = OpenFiles(files)
        self.segments: dict[int, int] = {}
        self.live: dict[int, int] = {}

    def path(self, segment: int) -> Path:
        return segment_path(self._folder, segment - self._lowest)

    def has(self, segment: int) -> bool:
        return self._files.exists(self.path(segment))

    def read_span(self, position: int, size: int) -> bytes:
        """Return `size` bytes of one segment, unchecked, fewer at its end."""
        with self.readers.borrow(self.path(position >> OFFSET_BITS)) as file:
            return file.read_at(position & OFFSET_MASK, size)

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Return the result of `read_span` if it needs no disk access, or None otherwise."""
        with self.readers.borrow(self.path(position >> OFFSET_BITS)) as file:
            return file.read_cached(position & OFFSET_MASK, size)

    def corrupt(self, position: int, reason: str) -> CorruptRecord:
        """Return the error for damage at a position."""
        segment = position >> OFFSET_BITS
        return CorruptRecord(self.path(segment), segment - self._lowest, position & OFFSET_MASK, reason)

    def add_live(self, segment: int, n: int) -> None:
        """Add n references to a segment, which keep it on disk."""
        self.live[segment] = self.live.get(segment, 0) + n

    def drop_live(self, segment: int, n: int) -> None:
        """Remove n references from a segment.

        Raises: ValueError if there are fewer (a defect of the caller).
        """
        left = self.live.get(segment, 0) - n
        if left < 0:
            raise ValueError(f"segment {segment} has {left + n} references, not {n}")
        if left:
            self.live[segment] = left
        else:
            del self.live[segment]

    def _remove(self, segment: int) -> None:
        path = self.path(segment)
        self.readers.forget(path)
        self._files.remove(path)
        del self.segments[segment]


class MessageLog(Segments):
    """One vhost's log.

    ``append``, ``take``, ``complete`` and the live counts are for the loop; ``write`` runs in one thread at a time,
    ``read_span`` in any thread.

    Shapes: ``position`` is where the next record is appended: its segment is exact, its offset may still grow by the
        mark of a new batch. The log is in the page cache up to ``written`` and on disk up to ``synced``, which stays 0
        with ``sync=False``; ``confirmable`` is the one of the two that confirms wait for. Invariant: synced <= written
        <= position; confirmable == position when no record is pending. New segments are numbered after all existing
        ones, so a position is never used twice.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        segment_bytes: int,
        sync: bool,
        number: int = 1,
        previous_end: int = 0,
        segments: dict[int, int] | None = None,
    ) -> None:
        super().__init__(files, folder)
        self._limit = min(max(segment_bytes, HEADER_BYTES + 1), SEGMENT_MAX_BYTES)
        self._sync = sync
        # Used by the writing thread alone: the open segment, and where its zeros end.
        self._file: File | None = None
        self._zeros_end = 0
        self._writer = DirectWriter()
        self._failed: StoreFailed | None = None
        self._in_flight: Batch | None = None
        self._runs: list[SegmentRun] = []
        self.waiting = False  # records were appended since the last `take`
        self._pieces: list[bytes] = []  # of the next block; empty until a run has begun, see the fence
        # Records that end here or later need `_append_at_border`: no run has begun, the block is full, or a group open.
        self._fence = -1
        self._full = 0  # the position at which the segment is full
        self.grouping = False  # a group is open
        self._group: Group | None = None  # the open group, since its first record
        self._begun_bytes = 0  # in the runs before the current run
        self._previous_end = previous_end
        self._token = b""  # of the segment of `position`; empty until the segment has begun
        self.position = number << OFFSET_BITS | HEADER_BYTES
        self.written = self.position
        self.synced = self.position if sync else 0
        self.confirmable = self.position
        if segments is not None:
            self.segments = segments
        self.syncs = 0  # for the metrics, like `syncing_s`; the writing thread sets both
        self.syncing_s = 0.0
        self._now_s: Callable[[], float] = lambda: 0.0  # durations are not measured

    def time_syncs(self, now_s: Callable[[], float]) -> None:
        """Measure the duration of syncs, by a clock that any thread may read."""
        self._now_s = now_s

    def begin(self) -> None:
        """Write the header of the first segment, and sync it unless syncs are off, so that a checkpoint's position is
        always in a file. Raises: StoreFailed.
        """
        self._begin_run()
        batch = self.take()
        assert batch is not None
        self.write(batch)
        self.complete(batch)

    # -- on the loop --------------------------------------------------------------------------------------------------

    def append(self, record: bytes, rest: bytes = b"") -> int:
        """Append a record, in one piece or two, and return its position. HOT. Nothing is written yet.
        Cost: an addition and a list append for each piece, and a copy when its block is full; it runs for every
        persistent message.
        """
        position = self.position
        rest_bytes = len(rest)
        after = position + len(record) + rest_bytes
        if after >= self._fence:
            return self._append_at_border(record, rest)
        pieces = self._pieces
        pieces.append(record)
        if rest_bytes:
            pieces.append(rest)
        self.position = after
        return position

    def append_apart(self, front: bytes, rest: bytes) -> int:
        """Append a record whose second piece has APART_BYTES, and is not copied unless it is grouped."""
        return self._append_at_border(front, rest)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Combine the records appended inside into one transaction: after a crash all of them exist or none.

        Positions that append returns are final and in the segment that `position` names. A nested group is part of
        the outer one; a group without records has no effect. A group may stay open over several turns of the loop: then
        the records of all others are part of it, too. An exception closes the group with the records appended so far,
        and propagates: their effects are also in memory, where ids were assigned and messages settled, and later
        records build on them.
        Invariant: no batch is taken inside, and no checkpoint begins.
        """
        if self.grouping:
            yield
            return
        self._fence = -1
        self.grouping = True
        try:
            yield
        finally:
            self.grouping = False
            self._close_group()

    @property
    def pending_bytes(self) -> int:
        """The number of bytes appended since the last `take`."""
        if not self._runs:
            return 0
        return self._begun_bytes + (self.position & OFFSET_MASK) - self._runs[-1].offset

    @property
    def needs_sync(self) -> bool:
        """Whether a record was appended that is not confirmable yet."""
        return self.position != self.confirmable

    @property
    def active(self) -> int:
        """The segment of the next record."""
        return self.position >> OFFSET_BITS

    def take(self) -> Batch | None:
        """Return all pending records as one batch, or None if there are none. Raises: RuntimeError if the previous
        batch was not completed; StoreFailed if an earlier write failed.
        """
        assert not self.grouping, "half a transaction would be written"
        if self._failed is not None:
            raise self._failed
        if not self._runs:
            return None
        if self._in_flight is not None:
            raise RuntimeError("the batch before this one is still being written")
        runs = self._runs
        size_bytes = self._begun_bytes + (self.position & OFFSET_MASK) - runs[-1].offset
        batch = self._in_flight = Batch(self.position, runs, size_bytes)
        for run in runs:  # the mark or header says how far the log is synced by now
            if run.offset:
                mark = encode_mark(self.synced, run.token, run.segment << OFFSET_BITS | run.offset)
            else:
                mark = encode_header(SegmentHeader(run.segment, run.previous_end, self.synced, run.token))
            blocks = run.blocks if run.blocks or run is not runs[-1] else self._pieces
            blocks.insert(0, mark)
        if self._pieces:
            runs[-1].blocks.append(b"".join(self._pieces))
            self._pieces.clear()
        self._runs = []
        self.waiting = False
        self._fence = -1
        self._begun_bytes = 0
        return batch

    def complete(self, batch: Batch) -> None:
        """Record that a batch was written, so its messages may be confirmed."""
        assert batch is self._in_flight
        self._in_flight = None
        self.written = self.confirmable = batch.end
        if self._sync:
            self.synced = batch.end

    def _append_at_border(self, record: bytes, rest: bytes) -> int:
        """Append a record that begins a batch, ends a block or segment, has a large piece or belongs to a transaction,
        and return its position.
        """
        size_bytes = len(record) + len(rest)
        assert size_bytes <= RECORD_MAX_BYTES
        if self.grouping:
            return self._append_inner(record + rest)
        if not self._runs:
            self._begin_run()
        if size_bytes >= APART_BYTES:
            self._add([record, rest])
        else:
            self._pieces.append(record)
            if rest:
                self._pieces.append(rest)
        position = self.position
        self.position += size_bytes
        if self.position >= self._fence:
            self._pass_border()
        return position

    def _add(self, pieces: list[bytes]) -> None:
        """Add pieces: large ones as blocks of their own, and blocks of BLOCK_BYTES that join the others."""
        joined_bytes = 0
        for piece in pieces:
            if len(piece) >= APART_BYTES:
                self._end_block()
                self._runs[-1].add(piece)
                continue
            self._pieces.append(piece)
            joined_bytes += len(piece)
            if joined_bytes >= BLOCK_BYTES:
                self._end_block()
                joined_bytes = 0

    def _pass_border(self) -> None:
        """End the segment if it is full, otherwise the block."""
        if self.position >= self._full:
            self._roll()
        else:
            self._end_block()
            self._fence = min(self.position + BLOCK_BYTES, self._full)

    def _end_block(self) -> None:
        """Join the pieces into the next block of the run, while they are in this processor's cache."""
        if self._pieces:
            self._runs[-1].blocks.append(b"".join(self._pieces))
            self._pieces.clear()

    def _append_inner(self, record: bytes) -> int:
        """Append a record to the open group, and return its position."""
        group = self._group
        if group is None:
            if not self._runs:
                self._begin_run()
                self._fence = -1
            group = self._group = Group(self.position, self.synced)
            self.position += HEAD_BYTES
        position = self.position
        self.position += len(record)
        assert self.position - group.position <= RECORD_MAX_BYTES
        group.add(record)
        if group.size_bytes >= BLOCK_BYTES:
            blocks = self._runs[-1].blocks
            if group.place < 0:
                self._end_block()
                group.begin_blocks(len(blocks))
                blocks.append(b"")  # the head is known at the end of the group
            self._add(group.take())
            self._end_block()
        return position

    def _close_group(self) -> None:
        group, self._group = self._group, None
        if not self._runs:
            return
        if group is not None:
            records = group.take()
            if group.place < 0:
                records.insert(0, group.head.encode())
            else:
                self._runs[-1].blocks[group.place] = group.head.encode()
            self._add(records)
        self._pass_border()

    def _roll(self) -> None:
        """Begin a segment as soon as the current one is full, so that `position` names the next record's segment."""
        after = self.position
        self._end_block()
        self._begun_bytes = self.pending_bytes
        self._previous_end = after
        self._token = b""
        self.position = ((after >> OFFSET_BITS) + 1) << OFFSET_BITS | HEADER_BYTES
        self._begin_run()

    def _begin_run(self) -> None:
        """Begin the run of a batch in the current segment, with room for its mark."""
        segment, offset = self.position >> OFFSET_BITS, self.position & OFFSET_MASK
        if self._token:
            self.position += MARK_BYTES
        else:
            self._token = self._files.token(TOKEN_BYTES)
            offset = 0
        self._full = segment << OFFSET_BITS | self._limit
        self._fence = min(self.position + BLOCK_BYTES, self._full)
        self.waiting = True
        self._runs.append(SegmentRun(segment, offset, self._previous_end, self._token))

    # -- in the writing thread ----------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Write a batch, and, unless syncs are off, sync it, and the folder when a segment is new.

        Raises: StoreFailed, after which the log accepts nothing: a second sync could succeed falsely.
        """
        begun = False
        try:
            for run in batch.runs:
                if run.offset == 0:
                    self._begin_file(run.segment)
                    begun = True
                file = self._file
                assert file is not None
                if len(run.blocks) == 1:
                    file.write_at(run.offset, run.blocks[0])
                    end = run.offset + len(run.blocks[0])
                elif run.large and self._sync:
                    end = self._writer.write(file, run.offset, run.blocks)
                else:
                    end = file.write_blocks_at(run.offset, run.blocks)
                if self._sync:
                    if end > self._zeros_end and batch.size_bytes <= SMALL_BYTES and not begun:
                        self._fill_ahead(file, end)
                    began_s = self._now_s()
                    file.sync()
                    self.syncing_s += self._now_s() - began_s
                    self.syncs += 1
                self.segments[run.segment] = end
            if begun and self._sync:
                self._files.sync_folder(self._folder)
        except StoreFailed as error:
            self._failed = error
            raise

    def _begin_file(self, segment: int) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._file = self._files.open(self.path(segment), create=True)
        self._zeros_end = 0

    def _fill_ahead(self, file: File, end: int) -> None:
        """Write zeros after the records, when a small batch has used up the earlier zeros; records overwrite them.

        A sync of a file that has grown also writes the journal of the file system, which takes about as long as the
        records. Readers treat zeros up to the end of a segment as its end. Only the last segment has any: the zeros end
        where the segment is full, and the log begins the next segment after a record that reaches that point. Raises:
        StoreFailed, but not for a full disk, because zeros only save time.
        """
        ahead_bytes = min(end, AHEAD_MAX_BYTES, self._limit - end)
        if ahead_bytes > 0:
            self._zeros_end = end + ahead_bytes
            file.write_zeros(end, ahead_bytes)

    # -- when checkpoints are written ---------------------------------------------------------------------------------

    def unneeded(self, need: LogNeed) -> list[int]:
        """Return the segments that a recovery does not need and to which no slot refers."""
        needed = {*need.segments, *self.live}
        limit = min(need.position >> OFFSET_BITS, self.active)
        return [number for number in sorted(self.segments) if number < limit and number not in needed]

    def reclaim(self, need: LogNeed) -> list[int]:
        """Remove the segments that are no longer needed, and return their numbers. Shapes: `need` is that of all kept
        checkpoints: recovery may read the segments that it names.
        """
        gone = self.unneeded(need)
        for number in gone:
            self._remove(number)
        return gone

    def close(self, *, clean: bool = False) -> None:
        """Close the files; what was not written is lost. `clean`: all was written, so cut off the zeros ahead."""
        self.readers.close()
        if self._file is not None:
            if clean and self._zeros_end > self.segments[max(self.segments)]:
                self._file.truncate(self.segments[max(self.segments)])
            self._file.close()
            self._file = None


def encode_mark(synced: int, token: bytes, position: int) -> bytes:
    """Return the record that precedes a batch."""
    content = pack_mark(synced, 0, MARK, 0, 0, 0, 0, token, position)
    return (len(content) << 32 | crc32c(content)).to_bytes(PREFIX_BYTES, "big") + content
