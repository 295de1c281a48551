"""A segment: one file of the log, and its header of 64 bytes. `record` draws the layout.

At most AHEAD_MAX_BYTES zeros may follow the last record of the last segment: see `message_log`.

A position is `segment << 32 | offset`. Segment numbers grow by one and are never reused.
"""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from broker.store.damage import NewerFormat

OFFSET_BITS: Final = 32
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
SPILLED: Final = 1 << 63  # the bit that is set in positions of the spill and clear in those of the log
HEADER_BYTES: Final = 64
FORMAT: Final = 1
AHEAD_MAX_BYTES: Final = 64 << 10  # zeros after the last record of the last segment
TOKEN_BYTES: Final = 16

_MAGIC: Final = b"SLOTMQ\0L"
_HEADER: Final = Struct(">8sHHIQQ16s12x")
_CHECKSUM: Final = Struct(">I")
_NAME: Final = re.compile(r"(\d{10})\.log")


class SegmentHeader(NamedTuple):
    """The header of a segment.

    Shapes: ``previous_end`` and ``synced`` are positions, or 0 if there is none.
    """

    number: int
    previous_end: int
    synced: int
    token: bytes


def encode_header(header: SegmentHeader) -> bytes:
    """Return the header of a segment as 64 bytes."""
    front = _HEADER.pack(_MAGIC, FORMAT, HEADER_BYTES, *header)
    return front + _CHECKSUM.pack(crc32c(front))


def decode_header(block: bytes, path: Path) -> SegmentHeader:
    """Return the header in the first bytes of the segment at a path.

    Raises: ValueError when they are not a header; NewerFormat when a later version wrote them. A version may change
        everything in a header except its magic, its length of 64 bytes and the positions of format and checksum.
    """
    if len(block) < HEADER_BYTES:
        raise ValueError(f"the header is cut off after {len(block)} bytes")
    front = block[: HEADER_BYTES - _CHECKSUM.size]
    if _CHECKSUM.unpack_from(block, len(front))[0] != crc32c(front):
        raise ValueError("the header's checksum is wrong")
    magic, version, header_bytes, *fields = _HEADER.unpack(front)
    if magic == _MAGIC and version > FORMAT:
        raise NewerFormat(path, version, FORMAT)
    if magic != _MAGIC or version != FORMAT or header_bytes != HEADER_BYTES:
        raise ValueError("this is not a log segment")
    return SegmentHeader(*fields)


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment's file."""
    return folder / f"{number:010d}.log"


def segment_number(name: str) -> int | None:
    """Return the segment number in a file name, or None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
