"""A batch: the records that one write and one sync make safe, segment by segment."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Batch", "SegmentRun"]


class SegmentRun(NamedTuple):
    """The part of a batch that lies in one segment; its first piece becomes the segment's header or a mark.

    Shapes: ``bodies`` are the places of large bodies among the pieces, ascending.
    """

    segment: int
    offset: int
    previous_end: int
    token: bytes
    pieces: list[bytes]
    bodies: list[int]


class Batch(NamedTuple):
    """The records of one write and one sync. Shapes: ``begin`` and ``end`` are positions, the end exclusive."""

    begin: int
    end: int
    runs: list[SegmentRun]
    size_bytes: int
