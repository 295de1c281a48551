"""Slot files: a sealed run of a queue's messages with its index and checksums, written once and never changed.

All numbers are little-endian, so that a reader can map the index as it is; AMQP's own parts stay big-endian.

    header, 64 bytes                          tail, the last 64 bytes
    0   8s  magic "SLOTMQ\\0S"                 0   u64 index_at, in the file
    8   u16 format version                    8   u64 meta_at
    10  u16 bytes of this header              16  u32 rows
    12  u32 flags, none yet                   20  u32 bytes of the meta
    16  16s store id                          24  u32 crc32c of header and rows
    32  u64 seal, 0 in a snapshot             28  u32 crc32c of the index
    40  u64 queue number                      32  u32 crc32c of the meta
    48  u64 first id                          36  20x
    56  8x                                    56  8s  magic "SLOTMQ\\0E"

    rows, from 64 on, without a gap: exchange and key as short strings, content header, body
    index, 40 bytes a row                     meta: JSON, see `SlotMeta`
    0   u64 message id    16  u32 at          32  u8  bytes of the exchange
    8   i64 timestamp_ms  20  u32 header_len  33  u8  bytes of the key
                          24  u32 body_len    34  u8  PERSISTENT, REDELIVERED
                          28  u32 crc32c      35  5x

The checksum of a file is that of its tail, which holds those of everything else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from broker.store.files import File

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "HEADER_BYTES",
    "INDEX_ROW",
    "PERSISTENT",
    "REDELIVERED",
    "TAIL_BYTES",
    "BadSlotFile",
    "SlotFileWriter",
    "SlotMeta",
    "SlotRow",
    "SlotView",
    "open_slot",
]

FORMAT: Final = 1
HEADER_BYTES: Final = 64
TAIL_BYTES: Final = 64
PERSISTENT: Final = 1
REDELIVERED: Final = 2
INDEX_ROW: Final = Struct("<QqIIIIBBBB4x")  # message id, timestamp, at, header, body, crc, exchange, key, flags, 0
FILE_MAX_BYTES: Final = (1 << 31) - 1  # a place in a file has to fit 31 bits: readers point with signed numbers
BLOCK_BYTES: Final = 1 << 20

_HEADER: Final = Struct("<8sHHI16sQQQ8x")
_TAIL: Final = Struct("<QQIIIII20x8s")
_TAIL_PACK: Final = _TAIL.pack
_INDEX_PACK: Final = INDEX_ROW.pack
_MAGIC: Final = b"SLOTMQ\0S"
_END_MAGIC: Final = b"SLOTMQ\0E"

assert _HEADER.size == HEADER_BYTES
assert _TAIL.size == TAIL_BYTES
assert INDEX_ROW.size == 40


class BadSlotFile(Exception):
    """Says why bytes are no slot file, or one that cannot be read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"not a readable slot file: {reason}")


@dataclass(frozen=True, slots=True)
class SlotMeta:
    """What a slot file says about itself.

    Shapes: ``store`` is 32 hex digits; ``queue`` is the name of the tap, or of the queue that a snapshot shows, and
        ``number`` that queue's number in its vhost; the ids are first <= id < end, ``count`` of them are rows;
        ``incarnation`` is the start of the broker that wrote it, empty in files of versions that did not say it.
    Units: the timestamps are the earliest and the latest of the rows, 0 without rows.
    """

    store: str
    seal: int
    vhost: str
    queue: str
    number: int
    first: int
    end: int
    count: int
    first_ts_ms: int
    last_ts_ms: int
    incarnation: str = ""

    def to_json(self) -> bytes:
        """Return the meta as it stands in the file."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, block: bytes) -> SlotMeta:
        """Return the meta that a file holds; fields of a later version are passed over. Raises: BadSlotFile."""
        try:
            found = json.loads(block)
            found.setdefault("incarnation", "")
            return cls(**{name: found[name] for name in cls.__slots__})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadSlotFile(f"its meta cannot be read: {error}") from error


class SlotRow(NamedTuple):
    """One message of a slot file. Shapes: ``header`` is the payload of the content header frame."""

    message_id: int
    timestamp_ms: int
    flags: int
    exchange: bytes
    key: bytes
    header: bytes
    body: bytes


class SlotFileWriter:
    """Writes one slot file, in rising order of message ids; nothing is synced.

    Invariant: between two writes it holds a block of rows, and of all rows the index.
    """

    __slots__ = (
        "_at",
        "_block_at",
        "_block_end",
        "_crc",
        "_earliest",
        "_file",
        "_index",
        "_latest",
        "_pending",
        "first",
        "incarnation",
        "number",
        "queue",
        "seal",
        "store",
        "vhost",
    )

    def __init__(
        self,
        file: File,
        store: str,
        seal: int,
        vhost: str,
        queue: str,
        number: int,
        first: int,
        incarnation: str = "",
    ) -> None:
        self.store = store
        self.incarnation = incarnation
        self.seal = seal
        self.vhost = vhost
        self.queue = queue
        self.number = number
        self.first = first
        header = _HEADER.pack(_MAGIC, FORMAT, HEADER_BYTES, 0, bytes.fromhex(store), seal, number, first)
        self._file = file
        self._pending = [header]
        self._index = bytearray()
        self._at = HEADER_BYTES  # where the next row begins
        self._block_at = 0  # where what is pending begins
        self._block_end = BLOCK_BYTES
        self._crc = 0
        self._earliest = (1 << 63) - 1
        self._latest = -(1 << 63)

    @property
    def rows(self) -> int:
        """How many rows were added."""
        return len(self._index) // INDEX_ROW.size

    @property
    def size_bytes(self) -> int:
        """How long the file is so far, with its index and without meta and tail."""
        return self._at + len(self._index)

    def add(self, message_id: int, timestamp_ms: int, flags: int, route: bytes, header: bytes, body: bytes) -> None:
        """Add one row. Shapes: route is exchange and key as short strings, as `encode_route` makes it.

        Raises: OverflowError when the file would be 2 GiB or longer, before anything is added; StoreFailed.
        """
        row = route + header + body
        at = self._at
        end = at + len(row)
        if end >= FILE_MAX_BYTES:
            raise OverflowError("a slot file is shorter than 2 GiB")
        exchange_len = route[0]
        self._index += _INDEX_PACK(
            message_id,
            timestamp_ms,
            at,
            len(header),
            len(body),
            crc32c(row),
            exchange_len,
            route[exchange_len + 1],
            flags,
            0,
        )
        self._pending.append(row)
        self._at = end
        if timestamp_ms < self._earliest:
            self._earliest = timestamp_ms
        if timestamp_ms > self._latest:
            self._latest = timestamp_ms
        if end >= self._block_end:
            self._flush()

    def finish(self, end: int) -> tuple[SlotMeta, int, int]:
        """Write the index, the meta and the tail; returns the meta, the file's length in bytes and its checksum."""
        self._flush()
        rows = self.rows
        earliest, latest = (self._earliest, self._latest) if rows else (0, 0)
        meta = SlotMeta(
            self.store,
            self.seal,
            self.vhost,
            self.queue,
            self.number,
            self.first,
            end,
            rows,
            earliest,
            latest,
            self.incarnation,
        )
        index, text = bytes(self._index), meta.to_json()
        meta_at = self._at + len(index)
        tail = _TAIL_PACK(self._at, meta_at, rows, len(text), self._crc, crc32c(index), crc32c(text), _END_MAGIC)
        self._file.write_at(self._at, index + text + tail)
        return meta, meta_at + len(text) + TAIL_BYTES, crc32c(tail)

    def _flush(self) -> None:
        block = b"".join(self._pending)
        self._pending.clear()
        self._file.write_at(self._block_at, block)
        self._crc = crc32c(block, self._crc)
        self._block_at = self._at
        self._block_end = self._at + BLOCK_BYTES


class SlotView:
    """A slot file that is open for reading.

    Shapes: ``buffer`` is the whole file; ``index_at`` where its index begins, ``rows`` how many rows it has;
        ``crc`` is the checksum that the seal log has for it.
    """

    __slots__ = ("_rows_crc", "buffer", "crc", "index_at", "meta", "rows")

    def __init__(self, meta: SlotMeta, buffer: memoryview, index_at: int, rows: int, rows_crc: int, crc: int) -> None:
        self.meta = meta
        self.buffer = buffer
        self.index_at = index_at
        self.rows = rows
        self.crc = crc
        self._rows_crc = rows_crc

    @property
    def index(self) -> memoryview:
        """The index, 40 bytes a row as `INDEX_ROW` has them."""
        return self.buffer[self.index_at : self.index_at + self.rows * INDEX_ROW.size]

    def verify(self) -> list[int]:
        """Return the numbers, from 0 on, of the rows whose bytes are not what was written.

        Cost: one checksum over all rows; only where it is wrong one for each row.
        """
        if crc32c(self.buffer[: self.index_at]) == self._rows_crc:
            return []
        damaged = []
        for number, (_, _, at, header_len, body_len, checksum, exchange_len, key_len, _, _) in enumerate(
            INDEX_ROW.iter_unpack(self.index)
        ):
            end = at + 2 + exchange_len + key_len + header_len + body_len
            if crc32c(self.buffer[at:end]) != checksum:
                damaged.append(number)
        return damaged

    def row(self, number: int) -> SlotRow:
        """Return the row of that number, from 0 on, damaged or not. Raises: IndexError."""
        if not 0 <= number < self.rows:
            raise IndexError(number)
        return self._row(INDEX_ROW.unpack_from(self.buffer, self.index_at + number * INDEX_ROW.size))

    def __iter__(self) -> Iterator[SlotRow]:
        return map(self._row, INDEX_ROW.iter_unpack(self.index))

    def __len__(self) -> int:
        return self.rows

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
    """Return a view of a whole slot file; its rows are not looked at, see `SlotView.verify`.

    Shapes: crc is the checksum that the seal log has for the file, None when nobody said.
    Raises: BadSlotFile when it is none, of a later format, cut short, or damaged outside its rows.
    """
    block = memoryview(buffer)
    size = len(block)
    if size < HEADER_BYTES + TAIL_BYTES:
        raise BadSlotFile(f"it has {size} bytes only")
    magic, version, *_ = _HEADER.unpack_from(block)
    if magic != _MAGIC:
        raise BadSlotFile("it does not begin as a slot file does")
    if version > FORMAT:
        raise BadSlotFile(f"written by a newer SlotMQ, format {version}; this version reads up to {FORMAT}")
    tail = bytes(block[size - TAIL_BYTES :])
    index_at, meta_at, rows, meta_len, rows_crc, index_crc, meta_crc, end_magic = _TAIL.unpack(tail)
    if end_magic != _END_MAGIC:
        raise BadSlotFile("it does not end as a slot file does: it was cut short")
    if crc is not None and crc32c(tail) != crc:
        raise BadSlotFile("it is not the file that was sealed")
    if any(tail[_TAIL.size - 28 : -8]) or not HEADER_BYTES <= index_at <= meta_at == index_at + rows * INDEX_ROW.size:
        raise BadSlotFile("its tail is damaged")
    if meta_at + meta_len + TAIL_BYTES != size:
        raise BadSlotFile(f"its tail speaks of {meta_at + meta_len + TAIL_BYTES} bytes, it has {size}")
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
        header = _HEADER.pack(_MAGIC, FORMAT, HEADER_BYTES, 0, store, meta.seal, meta.number, meta.first)
    except (ValueError, struct.error) as error:
        raise BadSlotFile(f"its meta cannot be right: {error}") from error
    if bytes(block[:HEADER_BYTES]) != header or meta.count != rows:
        raise BadSlotFile("its header and its meta do not agree")
