"""A batch: the records that one write and one sync make safe, segment by segment."""

from __future__ import annotations

from broker.store.record import encode_mark
from broker.store.segment import OFFSET_BITS, SegmentHeader, encode_header

__all__ = ["Batch", "SegmentRun"]


class SegmentRun:
    """The part of a batch that lies in one segment; its first piece becomes the segment's header or a mark."""

    __slots__ = ("offset", "pieces", "previous_end", "segment", "token")

    def __init__(self, segment: int, offset: int, previous_end: int, token: bytes) -> None:
        self.segment = segment
        self.offset = offset
        self.previous_end = previous_end
        self.token = token
        self.pieces: list[bytes] = [b""]

    def begin(self, synced: int) -> None:
        """Put the header or the mark in front, with the position that is synced by now."""
        if self.offset == 0:
            self.pieces[0] = encode_header(SegmentHeader(self.segment, self.previous_end, synced, self.token))
        else:
            self.pieces[0] = encode_mark(synced, self.token, self.segment << OFFSET_BITS | self.offset)


class Batch:
    """The records of one write and one sync. Shapes: ``begin`` and ``end`` are positions, the end exclusive."""

    __slots__ = ("begin", "end", "runs", "size_bytes")

    def __init__(self, begin: int, end: int, runs: list[SegmentRun], size_bytes: int) -> None:
        self.begin = begin
        self.end = end
        self.runs = runs
        self.size_bytes = size_bytes
