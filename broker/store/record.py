"""Records: the content of the vhost log. Pure: bytes in, bytes out.

A segment is a file that begins with a header of 64 bytes; records follow it without a gap:

    segment header                                    record
    0   8s  magic "SLOTMQ\\0L"                         0   u32  length of what follows the checksum
    8   u16 format version                            4   u32  CRC-32C of what follows it
    10  u16 bytes of this header                      8   u64  synced: every byte of the log below it was on disk
    12  u32 segment number                            16  u64  timestamp_ms
    16  u64 end of the segment before it, a position  24  u8   kind, with the bit INNER inside a transaction
    24  u64 synced, as in a record                    25  u8   flags
    32  16s token, random per segment                 26  u16  length of the route
    48  12x                                           28  u32  length of the content header
    60  u32 CRC-32C of the 60 bytes before it         32  u32  length of the targets
                                                      36       targets, route, content header, body

Records of every kind begin with these 36 bytes. The parts after them:

    MESSAGE, MOVED   targets: n times (u64 queue number, u64 message id); route: exchange, key as short strings
                     (before the targets of a numbered MESSAGE: u64 producer with the bit PRODUCER, u64 sequence;
                     before the target of a delayed message: u64 DUE, u64 the moment at which it is due, in ms)
    SETTLED          u64 queue number, then ids: each u64; with the flag RUN: u64 first id, u64 count
    REQUEUED         u64 queue number, then n times (u64 first id, u32 count, u32 number of returns of each message,
                     u32 number of returns that count towards the delivery limit)
    QUEUE_DELETED    u64 queue number
    TOPOLOGY         JSON of one change
    MARK             16s the segment's token, u64 its own position
    TRANSACTION      records, whole ones without a gap, each with the bit INNER in its kind

The log writes a mark at the front of each batch, unless a header is there: after a damaged record the next boundary is
found by searching for the token, which no publisher can know.

A position is ``segment << 32 | offset``. All integers are big-endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from struct import Struct
from typing import Any, Final

from crc32c import crc32c
from mypy_extensions import mypyc_attr

from broker.slots.redeliveries import ReturnRun
from broker.store.segment import SPILLED

MESSAGE: Final = 1
MOVED: Final = 2
SETTLED: Final = 3
REQUEUED: Final = 4
QUEUE_DELETED: Final = 5
TOPOLOGY: Final = 6
MARK: Final = 7
TRANSACTION: Final = 8
KINDS: Final = TRANSACTION  # the highest kind
INNER: Final = 0x80  # a record within a transaction; a search for outer records skips it

PERSISTENT: Final = 1  # flag of a message: delivery-mode 2
RUN: Final = 1  # flag of SETTLED
PRODUCER: Final = 1 << 63  # distinguishes the number of a producer from that of a queue
LEVEL_SHIFT: Final = 46  # a level created by use has the queue's number in the bits below, and its own above
QUEUE_NUMBERS: Final = (1 << LEVEL_SHIFT) - 1
DUE: Final = 1 << 62  # in place of a queue's number: a moment follows

HEAD: Final = Struct(">IIQQBBHII")  # length, checksum, synced, timestamp_ms, kind, flags, route, header, targets
HEAD_BYTES: Final = HEAD.size
PREFIX_BYTES: Final = 8  # length and checksum
KIND_AT: Final = 24
LENGTH_MIN: Final = HEAD_BYTES - PREFIX_BYTES  # so a run of zeros, whose CRC-32C would be right, is not a record
TARGET: Final = Struct(">QQ")
TARGET_BYTES: Final = TARGET.size
RETURNS: Final = Struct(">QIII")
MARK_TAIL: Final = Struct(">16sQ")
MARK_BYTES: Final = HEAD_BYTES + MARK_TAIL.size

FRONT: Final = Struct(">QQBBHII")  # a record between its prefix and its targets, as in HEAD
_FRONT_PACK: Final = FRONT.pack
_NUMBER: Final = Struct(">Q")


@mypyc_attr(acyclic=True)
class Recorded:
    """The part of a message that the store reads and writes.

    Units: ``record_bytes`` is the length of the record at ``position``. Only the store, and the code that pages slots
        in and out for it, uses these two fields.
    Invariant: ``position`` is 0, where no record is, until a record is appended to the log or written to the spill.
    """

    __slots__ = ("body", "header", "position", "record_bytes", "timestamp_ms")

    timestamp_ms: int
    header: bytes
    body: bytes
    position: int
    record_bytes: int

    def recorded(self, position: int, record_bytes: int) -> None:
        """Set the current position and length of the record."""
        self.position = position
        self.record_bytes = record_bytes

    @property
    def logged(self) -> bool:
        """Whether the record is in the log, not in the spill."""
        return 0 < self.position < SPILLED


def encode_route(exchange: str, key: str) -> bytes:
    """Return the part of a record that all messages of one route share.

    Raises: ValueError when a name is longer than a short string (AMQP 0-9-1 section 4.2.5.3), 255 bytes.
    """
    pieces = []
    for name in (exchange, key):
        raw = name.encode()
        pieces.append(bytes((len(raw),)) + raw)
    return b"".join(pieces)


def encode_message(
    synced: int, timestamp_ms: int, flags: int, route: bytes, header: bytes, body: bytes, targets: bytes
) -> bytes:
    """Return the record of one message for all the queues that accepted it.

    Shapes: targets is ``TARGET.pack(queue number, message id)`` of each queue, joined; header is the payload of the
        content header frame.
    """
    front = _FRONT_PACK(synced, timestamp_ms, MESSAGE, flags, len(route), len(header), len(targets))
    content = b"".join((front, targets, route, header, body))
    return encode_prefix(content) + content


def encode_prefix(content: bytes) -> bytes:
    """Return the prefix of a record: its length and its checksum."""
    return (len(content) << 32 | crc32c(content)).to_bytes(PREFIX_BYTES, "big")


def due_target(due_ms: int) -> bytes:
    """Return the target that contains the moment of a delayed message, to precede the target of its queue."""
    return TARGET.pack(DUE, due_ms)


def due_of(record: bytes) -> int:
    """Return the moment at which the message of a record is due, or 0 if it is not delayed."""
    targets_end = HEAD_BYTES + HEAD.unpack_from(record)[8]
    for number, due_ms in TARGET.iter_unpack(record[HEAD_BYTES:targets_end]):
        if number == DUE:
            return int(due_ms)
    return 0


def encode_moved(synced: int, record: bytes, targets: bytes) -> bytes:
    """Return a copy of a message's record for the queues that still need it (compaction).

    Shapes: record is a whole MESSAGE or MOVED record; its timestamp, flags, route, header and body stay.
    """
    _, _, _, timestamp_ms, _, flags, route_bytes, header_bytes, targets_bytes = HEAD.unpack_from(record)
    front = _FRONT_PACK(synced, timestamp_ms, MOVED, flags, route_bytes, header_bytes, len(targets))
    content = b"".join((front, targets, record[HEAD_BYTES + targets_bytes :]))
    return encode_prefix(content) + content


def encode_settled(synced: int, timestamp_ms: int, queue_number: int, ids: Sequence[int]) -> bytes:
    """Return the record of messages of one queue that were settled: acked, dropped, purged or expired.

    Shapes: ids are distinct and at least one, in any order. Three or more without gaps take 16 bytes together.
    """
    count = len(ids)
    flags = 0
    tail = b""
    if count > 2:
        is_run = isinstance(ids, range) and ids.step == 1
        first = ids[0] if is_run else min(ids)
        if is_run or max(ids) - first == count - 1:
            flags = RUN
            tail = Struct(">QQQ").pack(queue_number, first, count)
    if not tail:
        tail = Struct(f">{count + 1}Q").pack(queue_number, *ids)
    content = _FRONT_PACK(synced, timestamp_ms, SETTLED, flags, 0, 0, 0) + tail
    return (len(content) << 32 | crc32c(content)).to_bytes(PREFIX_BYTES, "big") + content


def encode_requeued(
    synced: int, timestamp_ms: int, queue_number: int, first_id: int, runs: Iterable[ReturnRun]
) -> bytes:
    """Return the record of returned messages.

    Shapes: indexes of the runs count from `first_id`. Their counts are absolute, so a second replay changes nothing.
    """
    parts = [RETURNS.pack(first_id + run.first, run.end - run.first, run.acquired, run.delivered) for run in runs]
    return _encode(synced, timestamp_ms, REQUEUED, 0, _NUMBER.pack(queue_number) + b"".join(parts))


def encode_queue_deleted(synced: int, timestamp_ms: int, queue_number: int) -> bytes:
    """Return the record of the deletion of a queue number."""
    return _encode(synced, timestamp_ms, QUEUE_DELETED, 0, _NUMBER.pack(queue_number))


def encode_topology(synced: int, timestamp_ms: int, change: Mapping[str, Any]) -> bytes:
    """Return the record of one change of the durable topology.

    Raises: TypeError or ValueError when a value is not JSON.
    """
    return _encode(synced, timestamp_ms, TOPOLOGY, 0, encode_change(change))


_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode_change(change: Mapping[str, Any]) -> bytes:
    """Return a change of the topology as JSON.

    Shapes: the keys are identifiers. Cost: O(fields); each call of a JSONEncoder would cost more than that.
    """
    fields = [f'"{name}":{_field(value)}' for name, value in change.items()]
    return f"{{{','.join(fields)}}}".encode()


def _field(value: Any) -> str:
    if isinstance(value, str):
        text: str = encode_basestring(value)
        return text
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _JSON.encode(value) if value != {} else "{}"


def decode_topology(record: bytes) -> dict[str, Any]:
    """Return the change in a TOPOLOGY record."""
    change: dict[str, Any] = json.loads(record[HEAD_BYTES:])
    return change


def is_whole(record: bytes) -> bool:
    """Return whether the bytes are exactly one record with a correct checksum."""
    if len(record) < HEAD_BYTES:
        return False
    length, checksum = HEAD.unpack_from(record)[:2]
    return bool(length == len(record) - PREFIX_BYTES and crc32c(memoryview(record)[PREFIX_BYTES:]) == checksum)


def encode_inner(record: bytes) -> bytes:
    """Return a whole record in its form within a transaction, which has the same length.

    It is a complete record, so a queue log may point to it. The bit INNER distinguishes it from a record outside of
    transactions, because the search for the next record after damage must not stop within a transaction.
    """
    kind = record[KIND_AT]
    assert kind not in (MARK, TRANSACTION)
    content = b"".join((record[PREFIX_BYTES:KIND_AT], bytes((kind | INNER,)), record[KIND_AT + 1 :]))
    return encode_prefix(content) + content


class TransactionHead:
    """The bytes that precede the records of a transaction, computed while records are added."""

    __slots__ = ("_checksum", "_front", "_length")

    def __init__(self, synced: int) -> None:
        self._front = HEAD.pack(0, 0, synced, 0, TRANSACTION, 0, 0, 0, 0)[PREFIX_BYTES:]
        self._length = len(self._front)
        self._checksum = crc32c(self._front)

    def add(self, records: Iterable[bytes]) -> None:
        """Include the next records. Shapes: records are results of `encode_inner`, in order."""
        for record in records:
            self._length += len(record)
            self._checksum = crc32c(record, self._checksum)

    def encode(self) -> bytes:
        return (self._length << 32 | self._checksum).to_bytes(PREFIX_BYTES, "big") + self._front


def inner_records(record: bytes) -> list[tuple[int, bytes]]:
    """Return (offset, record) of each record in a whole TRANSACTION record; offsets count from its beginning.

    Raises: ValueError if the content is invalid; then no record of it may be applied.
    """
    found = []
    at = HEAD_BYTES
    while at < len(record):
        length = HEAD.unpack_from(record, at)[0] if len(record) - at >= HEAD_BYTES else 0
        inner = record[at : at + PREFIX_BYTES + length]
        if length < LENGTH_MIN or not is_whole(inner) or not inner[KIND_AT] & INNER:
            raise ValueError(f"there is no inner record {at} bytes into the transaction")
        found.append((at, inner))
        at += len(inner)
    return found


def body_bytes(head: bytes, size: int) -> int:
    """Return the length of the body of a message's record, from its head alone.

    Shapes: size is the whole record's length, from its entry in the queue log.
    Raises: ValueError when the head is that of another record, or cut off.
    """
    if len(head) < HEAD_BYTES:
        raise ValueError("the head is cut off")
    length, _, _, _, kind, _, route_bytes, header_bytes, targets_bytes = HEAD.unpack_from(head)
    body: int = size - HEAD_BYTES - targets_bytes - route_bytes - header_bytes
    if kind & ~INNER not in (MESSAGE, MOVED) or length + PREFIX_BYTES != size or body < 0:
        raise ValueError(f"a record of kind {kind} with {length + PREFIX_BYTES} bytes is not a message of {size}")
    return body


def route_names(route: bytes) -> tuple[str, str]:
    """Return the exchange and the routing key of a route encoded by `encode_route`."""
    key_at = 1 + route[0]
    return route[1:key_at].decode(), route[key_at + 1 :].decode()


def _encode(synced: int, timestamp_ms: int, kind: int, flags: int, tail: bytes) -> bytes:
    content = _FRONT_PACK(synced, timestamp_ms, kind, flags, 0, 0, 0) + tail
    return (len(content) << 32 | crc32c(content)).to_bytes(PREFIX_BYTES, "big") + content
