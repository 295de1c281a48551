"""A batch: the records that one write and one sync make safe, segment by segment."""

from __future__ import annotations

__all__ = ["Batch", "SegmentRun"]


class SegmentRun:
    """The part of a batch that lies in one segment; its first piece becomes the segment's header or a mark.

    Shapes: ``bodies`` are the places of large bodies among the pieces, ascending.
    """

    __slots__ = ("bodies", "offset", "pieces", "previous_end", "segment", "token")

    def __init__(self, segment: int, offset: int, previous_end: int, token: bytes) -> None:
        self.segment = segment
        self.offset = offset
        self.previous_end = previous_end
        self.token = token
        self.pieces = [b""]
        self.bodies: list[int] = []


class Batch:
    """The records of one write and one sync. Shapes: ``end`` is the position behind them."""

    __slots__ = ("end", "runs", "size_bytes")

    def __init__(self, end: int, runs: list[SegmentRun], size_bytes: int) -> None:
        self.end = end
        self.runs = runs
        self.size_bytes = size_bytes
