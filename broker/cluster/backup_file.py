"""The file format of a backup. Pure, except for the stream, which the caller opens.

All integers are little-endian. The file begins with the line MAGIC, followed by blocks:

    0   u8  kind: H head, T start of a table, D rows of this table, E end
    1   u32 bytes of the content
    5   u32 CRC-32C of kind and content
    9       content: JSON; in D blocks, the output of COPY (FORMAT binary)

A file without an end block is incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any, BinaryIO, Final

from crc32c import crc32c

MAGIC: Final = b"slotmq cluster backup, format 1\n"
FRONT: Final = Struct("<cII")
HEAD, TABLE, DATA, END = b"H", b"T", b"D", b"E"
BLOCK_BYTES: Final = 256 << 10  # buffered rows are written at this size
CONTENT_BYTES_MAX: Final = 1 << 30  # PostgreSQL's limit for a value; a block ends with the row that fills it
UNFINISHED: Final = "the backup is incomplete: its end is missing"


class BackupRefused(Exception):
    """A backup that cannot be made or restored; the text is one line."""


class BackupWriter:
    """Write a backup. Units: ``written`` counts bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._rows = bytearray()
        self.written = stream.write(MAGIC)

    def write(self, kind: bytes, fields: Mapping[str, Any]) -> None:
        """Write the buffered rows, then a JSON block."""
        self.flush()
        self._write(kind, json.dumps(fields).encode())

    async def add(self, rows: bytes) -> None:
        """Add rows of the current table; a coroutine, because the driver awaits it."""
        self._rows += rows
        if len(self._rows) >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._write(DATA, bytes(self._rows))
            self._rows.clear()

    def _write(self, kind: bytes, content: bytes) -> None:
        self.written += self._stream.write(FRONT.pack(kind, len(content), crc32c(content, crc32c(kind))) + content)


class BackupReader:
    """Read a backup. Raises: BackupRefused for any other file, and for an incomplete or damaged backup."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        if stream.read(len(MAGIC)) != MAGIC:
            raise BackupRefused("it is not a backup of a cluster, or one of another format")
        self.position = len(MAGIC)

    def next(self) -> tuple[bytes, bytes]:
        front = self._stream.read(FRONT.size)
        if len(front) < FRONT.size:
            raise BackupRefused(UNFINISHED)
        kind, length, checksum = FRONT.unpack(front)
        content = self._stream.read(min(length, CONTENT_BYTES_MAX))
        if len(content) < min(length, CONTENT_BYTES_MAX):
            raise BackupRefused(UNFINISHED)
        if crc32c(content, crc32c(kind)) != checksum:
            raise BackupRefused(f"the backup is damaged at byte {self.position:,}")
        self.position += len(front) + length
        return kind, content

    def fields(self, kind: bytes) -> dict[str, Any]:
        """Return the fields of the next block, which must have the given kind."""
        found, content = self.next()
        if found != kind:
            raise BackupRefused(f"the backup is damaged at byte {self.position:,}: another block is expected there")
        fields: dict[str, Any] = json.loads(content)
        return fields
