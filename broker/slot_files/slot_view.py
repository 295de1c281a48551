"""The reader of one slot file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from broker.slot_files.slot_file import (
    END_MAGIC,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    INDEX_ROW,
    MAGIC,
    TAIL,
    TAIL_BYTES,
    BadSlotFile,
    SlotMeta,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STEP_BYTES: Final = 16 << 20


class SlotRow(NamedTuple):
    """One message of a slot file. Shapes: ``header`` is the payload of the content header frame."""

    message_id: int
    timestamp_ms: int
    flags: int
    exchange: bytes
    key: bytes
    header: bytes
    body: bytes


class SlotView:
    """A slot file, open for reading.

    Shapes: ``buffer`` is the whole file, ``index_at`` the offset of its index, ``rows`` the number of its rows, ``crc``
        its checksum in the seal log.
    """

    def __init__(self, meta: SlotMeta, buffer: memoryview, index_at: int, rows: int, rows_crc: int, crc: int) -> None:
        self.meta = meta
        self.buffer = buffer
        self.index_at = index_at
        self.rows = rows
        self.crc = crc
        self._rows_crc = rows_crc

    @property
    def index(self) -> memoryview:
        """The index, with 40 bytes for each row in the format of `INDEX_ROW`."""
        return self.buffer[self.index_at : self.index_at + self.rows * INDEX_ROW.size]

    def verify(self, passed: Callable[[], object] = lambda: None) -> list[int]:
        """Return the numbers of the damaged rows, counted from 0; call `passed` after every 16 MiB.

        Cost: one checksum over all rows; if it is wrong, another one for each row.
        """
        checksum = 0
        for at in range(0, self.index_at, STEP_BYTES):
            checksum = crc32c(self.buffer[at : min(at + STEP_BYTES, self.index_at)], checksum)
            passed()
        if checksum == self._rows_crc:
            return []
        damaged = []
        for number, (_, _, at, header_len, body_len, checksum, exchange_len, key_len, _, _) in enumerate(
            INDEX_ROW.iter_unpack(self.index)
        ):
            end = at + 2 + exchange_len + key_len + header_len + body_len
            if crc32c(self.buffer[at:end]) != checksum:
                damaged.append(number)
        return damaged

    def __iter__(self) -> Iterator[SlotRow]:
        return map(self._row, INDEX_ROW.iter_unpack(self.index))

    def _row(self, entry: tuple[int, ...]) -> SlotRow:
        message_id, timestamp_ms, at, header_len, body_len, _, exchange_len, key_len, flags, _ = entry
        buffer = self.buffer
        exchange_at = at + 1
        key_at = exchange_at + exchange_len + 1
        header_at = key_at + key_len
        body_at = header_at + header_len
        return SlotRow(
            message_id,
            timestamp_ms,
            flags,
            bytes(buffer[exchange_at : exchange_at + exchange_len]),
            bytes(buffer[key_at:header_at]),
            bytes(buffer[header_at:body_at]),
            bytes(buffer[body_at : body_at + body_len]),
        )


def open_slot(buffer: ReadableBuffer, crc: int | None = None) -> SlotView:
    """Return a view of a whole slot file, whose rows are not checked; see `SlotView.verify`.

    Shapes: `crc` is the checksum of the file in the seal log, or None if it is not known.
    Raises: BadSlotFile when it is not a slot file, has a later format, is cut short, or is damaged outside its rows.
    """
    block = memoryview(buffer)
    size = len(block)
    if size < HEADER_BYTES + TAIL_BYTES:
        raise BadSlotFile(f"it has only {size} bytes")
    magic, version, *_ = HEADER.unpack_from(block)
    if magic != MAGIC:
        raise BadSlotFile("it does not begin as a slot file does")
    if version > FORMAT:
        raise BadSlotFile(f"written by a newer SlotMQ, format {version}; this version reads up to {FORMAT}")
    tail = bytes(block[size - TAIL_BYTES :])
    index_at, meta_at, rows, meta_len, rows_crc, index_crc, meta_crc, end_magic = TAIL.unpack(tail)
    if end_magic != END_MAGIC:
        raise BadSlotFile("it does not end as a slot file does: it was cut short")
    if crc is not None and crc32c(tail) != crc:
        raise BadSlotFile("it is not the file that was sealed")
    if any(tail[TAIL.size - 28 : -8]) or not HEADER_BYTES <= index_at <= meta_at == index_at + rows * INDEX_ROW.size:
        raise BadSlotFile("its tail is damaged")
    if meta_at + meta_len + TAIL_BYTES != size:
        raise BadSlotFile(f"it has {size} bytes, and {meta_at + meta_len + TAIL_BYTES} according to its tail")
    if crc32c(block[index_at:meta_at]) != index_crc:
        raise BadSlotFile("its index is damaged")
    text = bytes(block[meta_at : meta_at + meta_len])
    if crc32c(text) != meta_crc:
        raise BadSlotFile("its meta is damaged")
    meta = SlotMeta.from_json(text)
    _check_header(block, meta, rows)
    return SlotView(meta, block, index_at, rows, rows_crc, crc32c(tail))


def _check_header(block: memoryview, meta: SlotMeta, rows: int) -> None:
    try:
        store = bytes.fromhex(meta.store)
        header = HEADER.pack(MAGIC, FORMAT, HEADER_BYTES, 0, store, meta.seal, meta.number, meta.first)
    except (ValueError, struct.error) as error:
        raise BadSlotFile(f"its meta cannot be right: {error}") from error
    if bytes(block[:HEADER_BYTES]) != header or meta.count != rows:
        raise BadSlotFile("its header and its meta do not agree")
