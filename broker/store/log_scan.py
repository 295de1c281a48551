"""Read the log's segments in order, block by block; after damage, find evidence that the damaged bytes were synced."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Final, Protocol

from crc32c import crc32c

from broker.store.damage import read_around
from broker.store.files import File, Files
from broker.store.record import HEAD, HEAD_BYTES, INNER, LENGTH_MIN, MARK, MARK_BYTES, MARK_TAIL, PREFIX_BYTES
from broker.store.replay import ReplayEnd
from broker.store.segment import (
    AHEAD_MAX_BYTES,
    HEADER_BYTES,
    OFFSET_BITS,
    SegmentHeader,
    decode_header,
    segment_number,
    segment_path,
)

BLOCK_BYTES: Final = 8 * 1024 * 1024
ZEROS: Final = "nothing but zeros up to the end of the file"


class BlockConsumer(Protocol):
    """A reader of the records of a block."""

    def run(self, block: bytes, base: int) -> ReplayEnd:
        """Read the records of a block; the first one begins at position `base`."""


class LogFolder:
    """The segments in a log's folder.

    Shapes: ``segments`` maps the number of each to its bytes, ascending. ``unreadable`` maps each segment in which
        sectors were unreadable, and replaced by zeros, to the error.
    """

    def __init__(self, files: Files, folder: Path, only: Container[int] | None = None) -> None:
        """`only` contains the numbers of the segments to read; None means all. Others may be removed at any time."""
        self._files = files
        self.folder = folder
        named = [number for name in files.list(folder) if (number := segment_number(name)) is not None]
        numbers = sorted(named if only is None else [number for number in named if number in only])
        self.segments = {number: files.size(segment_path(folder, number)) for number in numbers}
        self.unreadable: dict[int, str] = {}

    def path(self, number: int) -> Path:
        return segment_path(self.folder, number)

    def header(self, number: int) -> SegmentHeader:
        """Return a segment's header. Raises: ValueError when it is damaged; NewerFormat; StoreFailed."""
        block = self.read(number, 0, HEADER_BYTES)
        if number in self.unreadable and not any(block):
            raise ValueError(self.unreadable[number])
        header = decode_header(block, self.path(number))
        if header.number != number:
            raise ValueError(f"the header is that of segment {header.number}")
        return header

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Return a piece of a segment, shorter at its end, with zeros for unreadable sectors."""
        file = self._files.open(self.path(number))
        try:
            return self._read(number, file, offset, size)
        finally:
            file.close()

    def _read(self, number: int, file: File, offset: int, size: int) -> bytes:
        block, reason = read_around(file.read_at, offset, size)
        if reason:
            self.unreadable[number] = reason
        return block

    def scan(self, number: int, offset: int, consumer: BlockConsumer, done: Callable[[int], None]) -> tuple[int, str]:
        """Pass the records of a segment from `offset` on to a consumer; return where it stopped, and the damage.

        Shapes: `done` is called with the number of bytes used of each block. The damage is empty at the end of the
            segment, and where nothing follows but zeros, at most as many as the log writes ahead.
        """
        size = self.segments[number]
        need = HEAD_BYTES
        file = self._files.open(self.path(number))
        try:
            while offset < size:
                block = self._read(number, file, offset, min(max(BLOCK_BYTES, need), size - offset))
                stop = consumer.run(block, number << OFFSET_BITS | offset)
                offset += stop.used
                done(stop.used)
                need = stop.need
                if stop.damage or (need and offset + need > size and offset < size):
                    damage = stop.damage or f"the segment ends {offset + need - size} bytes before the record does"
                    zeros = self._is_zero(number, offset)
                    ahead = zeros and size - offset <= AHEAD_MAX_BYTES
                    return offset, self.unreadable.get(number) or ("" if ahead else ZEROS if zeros else damage)
        finally:
            file.close()
        return offset, ""

    def evidence_after(self, number: int, offset: int) -> int:
        """Return the highest position that the bytes after a damaged place prove to be synced, or 0 if there is none.
        The proofs are records that follow the damaged one, marks, which contain the token of their segment, and later
        segments' headers.
        Cost: reads the rest of the log, once for each damaged place.
        """
        found = [self._evidence_in(number, offset)] if number in self.segments else []
        found.extend(self._evidence_in(later, 0) for later in self.segments if later > number)
        return max(found, default=0)

    def resume(self, number: int, offset: int, *, inner: bool = False) -> int:
        """Return the offset of the next record after a damaged one, or the segment's end. With `inner`, the records
        within transactions count too, even if the first of them is damaged.
        """
        if offset < HEADER_BYTES:
            return HEADER_BYTES
        block = self.read(number, offset, self.segments[number])
        if inner and (_follows(block, HEAD_BYTES, inner=True) or _end_of_damaged(block[HEAD_BYTES:], inner=True)):
            return offset + HEAD_BYTES  # the damage is in a transaction, whose records have checksums of their own
        end = _end_of_damaged(block, inner=inner)
        if end:
            return offset + end
        marks = [at for at, _ in self._marks(number, block, offset)]
        return offset + marks[0] if marks else self.segments[number]

    def _evidence_in(self, number: int, offset: int) -> int:
        evidence = 0
        if offset == 0:
            try:
                evidence = self.header(number).synced
            except ValueError:
                pass
            offset = HEADER_BYTES
        block = self.read(number, offset, self.segments[number])
        at = _end_of(block, 0)
        while at and (end := _record_at(block, at)):
            synced = HEAD.unpack_from(block, at)[2]
            if synced <= number << OFFSET_BITS | offset + at:
                evidence = max(evidence, synced)
            at = end
        return max([evidence, *(synced for _, synced in self._marks(number, block, offset))])

    def _marks(self, number: int, block: bytes, offset: int) -> Iterator[tuple[int, int]]:
        """Yield (offset in the block, synced position) of each intact mark."""
        try:
            token = self.header(number).token
        except ValueError:
            return
        found = block.find(token)
        while found >= 0:
            at = found - HEAD_BYTES
            if at >= 0 and _record_at(block, at) == at + MARK_BYTES:
                _, _, synced, _, kind, *_ = HEAD.unpack_from(block, at)
                position = MARK_TAIL.unpack_from(block, at + HEAD_BYTES)[1]
                if kind == MARK and position == number << OFFSET_BITS | offset + at:
                    yield at, synced
            found = block.find(token, found + 1)

    def _is_zero(self, number: int, offset: int) -> bool:
        block = self.read(number, offset, self.segments[number])
        return block.count(0) == len(block)


def _end_of(block: bytes, at: int) -> int:
    """Return the end of the record at an offset according to its length, or 0 if the length is impossible."""
    if len(block) - at < HEAD_BYTES:
        return 0
    length = HEAD.unpack_from(block, at)[0]
    end = at + PREFIX_BYTES + length
    return end if length >= LENGTH_MIN and end <= len(block) else 0


def _end_of_damaged(block: bytes, *, inner: bool) -> int:
    """Return the end of the damaged record at the beginning of a block, or 0 if it cannot be determined."""
    end = _corrected_end(block, inner=inner)
    if end:
        return end
    end = _end_of(block, 0)
    return end if _follows(block, end, inner=inner) else 0


def _corrected_end(block: bytes, *, inner: bool) -> int:
    """Return the end of the record at the beginning of a block if only one byte of its length is wrong, or 0 otherwise.

    The checksum, which does not cover the length, confirms the end.
    """
    if len(block) < HEAD_BYTES:
        return 0
    length, checksum = HEAD.unpack_from(block)[:2]
    ends = [
        PREFIX_BYTES + (length & ~(0xFF << shift) | byte << shift) for shift in (0, 8, 16, 24) for byte in range(256)
    ]
    for end in ends:
        bounded = end == len(block) or (HEAD_BYTES <= end < len(block) and _follows(block, end, inner=inner))
        if bounded and crc32c(memoryview(block)[PREFIX_BYTES:end]) == checksum:
            return int(end)
    return 0


def _follows(block: bytes, at: int, *, inner: bool) -> bool:
    """Return whether an intact record begins at an offset above 0."""
    return at > 0 and _record_at(block, at, inner=inner) > 0


def _record_at(block: bytes, at: int, *, inner: bool = False) -> int:
    """Return the end of the intact record at an offset, or 0 if there is none.

    A record within a transaction counts only with `inner`: a damaged length may lead to it, and continuing there would
    apply half of the transaction.
    """
    end = _end_of(block, at)
    if not end:
        return 0
    _, checksum, _, _, kind, *_ = HEAD.unpack_from(block, at)
    if kind & INNER and not inner:
        return 0
    return end if crc32c(memoryview(block)[at + PREFIX_BYTES : end]) == checksum else 0
