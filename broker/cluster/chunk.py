"""Chunks: the messages of one batch as bytes, with an index by level in front. Pure: bytes or messages in and out.

All integers are little-endian.

    head                                              kind: the common fields of neighbouring messages
    0   4s  magic "SQCK"                              0   u64 timestamp_ms, when the broker accepted the messages
    4   u16 format version                            8   u64 the moment at which they expire, 0 for never
    6   u16 zero                                      16  u64 the moment at which they are due, 0 for at once
    8   u32 bytes of head and index                   24  u16 length of the route
    12  u32 CRC-32C of both except these 4 bytes      26  u16 zero
    16  u32 CRC-32C of the bodies                     28  u32 length of the content header
    20  u32 records                                   32      route (exchange, key as short strings), content header
    24  u32 runs
    28  u32 kinds
    32  u32 levels
    36  u64 bytes of the bodies

The index follows the head: the body size of each record (u32), the kind of each run of records (u32), the length of
each run (u32), the number of each level (i64), the number of messages of each level (u32), the records of the levels,
one level after the other (u32), and the kinds. The bodies follow the index. A message for several levels is one record.
The index of a message in its slot is its position among the records of the level.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

from crc32c import crc32c

from broker.cluster.database_rows import LeasedRow
from broker.core.message.message import Envelope, Message
from broker.delivery.message_loader import MessageLoader

MAGIC: Final = b"SQCK"
FORMAT: Final = 1
HEAD: Final = Struct("<4sHHIIIIIIIQ")
HEAD_BYTES: Final = HEAD.size
CHECKSUM_AT: Final = 12
KIND: Final = Struct("<QQQHHI")
KIND_BYTES: Final = KIND.size
SWAPS: Final = sys.byteorder == "big"
_U32: Final = "I"
_U64: Final = "Q"
_I64: Final = "q"  # the mailbox of a node has a negative number


class DamagedChunk(Exception):
    """A chunk that is missing, incomplete, damaged or of another format; the text is the reason."""


class Kind:
    """The common fields of a run of messages.

    Shapes: ``route`` is encoded as in a log record, ``header`` is the payload of the content header frame.
    Units: ``expires_ms`` is the moment at which the message expires, or 0 for never; ``due_ms`` the moment at which a
        delayed message is due, or 0 for at once.
    """

    __slots__ = ("due_ms", "expires_ms", "header", "route", "timestamp_ms")

    def __init__(self, timestamp_ms: int, expires_ms: int, due_ms: int, route: bytes, header: bytes) -> None:
        self.timestamp_ms = timestamp_ms
        self.expires_ms = expires_ms
        self.due_ms = due_ms
        self.route = route
        self.header = header


class ChunkWriter:
    """Collect messages, and encode them as a chunk. Cost: one append per message; equal fields of neighbouring messages
    are stored once.
    Invariant: ``bytes`` grows with each record, and is the approximate size of the chunk.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.kinds: list[int] = []  # of each run
        self.runs: list[int] = []  # the length of each run
        self.bytes = HEAD_BYTES
        self.body_bytes = 0
        self._kinds: list[bytes] = []
        self._known: dict[tuple[bytes, bytes, tuple[int, int, int]], int] = {}
        self._route = b""
        self._header = b""
        self._times = (-1, 0, 0)

    def add(self, timestamp_ms: int, expires_ms: int, due_ms: int, route: bytes, header: bytes, body: bytes) -> int:
        """Append a message and return its record. HOT."""
        bodies = self.bodies
        record = len(bodies)
        if (
            header is self._header
            and route is self._route
            and timestamp_ms == self._times[0]
            and expires_ms == self._times[1]
            and due_ms == self._times[2]
        ):
            self.runs[-1] += 1
        else:
            self._begin_run((timestamp_ms, expires_ms, due_ms), route, header)
        bodies.append(body)
        self.body_bytes += len(body)
        self.bytes += len(body) + 8
        return record

    def _begin_run(self, times: tuple[int, int, int], route: bytes, header: bytes) -> None:
        self._times, self._route, self._header = times, route, header
        key = (route, header, times)
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = len(self._kinds)
            known = KIND.pack(times[0], times[1], times[2], len(route), 0, len(header)) + route + header
            self._kinds.append(known)
            self.bytes += len(known)
        if self.kinds and self.kinds[-1] == kind:
            self.runs[-1] += 1
            return
        self.kinds.append(kind)
        self.runs.append(1)
        self.bytes += 8

    def encode(self, levels: Sequence[int], records: Sequence[array[int]], wanted: bytearray | None = None) -> bytes:
        """Return the chunk.

        Shapes: `records[n]` are the records of `levels[n]`, as an array of u32. A record for which `wanted` is 0 is
            stored without its body, because no node will read it.
        """
        bodies = self.bodies
        if wanted is not None:
            bodies = [body if wanted[record] else b"" for record, body in enumerate(bodies)]
        content = b"".join(bodies)
        index = b"".join(
            (
                _octets(array(_U32, [len(body) for body in bodies])),
                _octets(array(_U32, self.kinds)),
                _octets(array(_U32, self.runs)),
                _octets(array(_I64, levels)),
                _octets(array(_U32, [len(one) for one in records])),
                b"".join([_octets(one) for one in records]),
                b"".join(self._kinds),
            )
        )
        counts = (len(bodies), len(self.runs), len(self._kinds), len(levels), len(content))
        front_bytes = HEAD_BYTES + len(index)
        head = HEAD.pack(MAGIC, FORMAT, 0, front_bytes, 0, crc32c(content), *counts)
        checksum = _checksum(head, index)
        head = HEAD.pack(MAGIC, FORMAT, 0, front_bytes, checksum, crc32c(content), *counts)
        return b"".join((head, index, content))


class Chunk:
    """A chunk read from bytes. Raises: DamagedChunk, also if bodies are needed and only the index was read.

    Shapes: ``kinds`` are the kinds of the runs; ``levels`` maps each level to its records. Record ``n`` has the body
        ``data[ends[n]:ends[n + 1]]``.
    """

    def __init__(self, data: bytes) -> None:
        """Read the index; `data` may end after it. Cost: O(records), most of it in array operations."""
        if len(data) < HEAD_BYTES:
            raise DamagedChunk(f"it has {len(data)} bytes, fewer than its head")
        magic, version, _, front_bytes, checksum, _, records, runs, kinds, levels, _ = HEAD.unpack_from(data)
        if magic != MAGIC:
            raise DamagedChunk("it does not begin as a chunk does")
        if version != FORMAT:
            raise DamagedChunk(f"its format is {version}, and this broker reads format {FORMAT}")
        if front_bytes < HEAD_BYTES or front_bytes > len(data):
            raise DamagedChunk(f"its index ends at {front_bytes} of {len(data)} bytes")
        if checksum != _checksum(data[:HEAD_BYTES], data[HEAD_BYTES:front_bytes]):
            raise DamagedChunk("the checksum of its index is wrong")
        self.data = data
        self.records: int = records
        at = HEAD_BYTES
        sizes = _array(_U32, data, at, records)
        at += 4 * records
        self.ends = array(_U64, accumulate(sizes, initial=front_bytes))
        run_kinds = _array(_U32, data, at, runs)
        at += 4 * runs
        self._runs = _array(_U32, data, at, runs)
        at += 4 * runs
        numbers = _array(_I64, data, at, levels)
        at += 8 * levels
        counts = _array(_U32, data, at, levels)
        at += 4 * levels
        self.levels: dict[int, array[int]] = {}
        for place in range(levels):
            self.levels[numbers[place]] = _array(_U32, data, at, counts[place])
            at += 4 * counts[place]
        known: list[Kind] = []
        for _kind in range(kinds):
            timestamp_ms, expires_ms, due_ms, route_bytes, _, header_bytes = KIND.unpack_from(data, at)
            at += KIND_BYTES
            header_at = at + route_bytes
            end = header_at + header_bytes
            known.append(Kind(timestamp_ms, expires_ms, due_ms, data[at:header_at], data[header_at:end]))
            at = end
        self.kinds = [known[kind] for kind in run_kinds]
        self._run_of: array[int] | None = None
        self._checked = False

    @property
    def bytes(self) -> int:
        """The length of the whole chunk."""
        return int(self.ends[self.records])

    def run_of(self) -> array[int]:
        """Return the run of each record."""
        run_of_record = self._run_of
        if run_of_record is None:
            run_of_record = self._run_of = array(_U32)
            for run, length in enumerate(self._runs):
                run_of_record.extend(array(_U32, (run,)) * length)
        return run_of_record

    def check(self) -> None:
        """Check the bodies once. Raises: DamagedChunk."""
        if self._checked:
            return
        if len(self.data) != self.bytes:
            raise DamagedChunk(f"it has {len(self.data)} of {self.bytes} bytes")
        if crc32c(memoryview(self.data)[self.ends[0] :]) != HEAD.unpack_from(self.data)[5]:
            raise DamagedChunk("the checksum of its bodies is wrong")
        self._checked = True

    def of(self, level: int) -> array[int]:
        """Return the records of a level, in the order of the indexes in its slot. Raises: DamagedChunk."""
        records = self.levels.get(level)
        if records is None:
            raise DamagedChunk(f"it has no message of level {level}")
        return records


class ChunkLoader(MessageLoader):
    """Build messages from the records of chunks. Neighbouring messages share their envelope, header and facts."""

    def load_row(self, row: LeasedRow, chunks: Mapping[int, Chunk | DamagedChunk]) -> list[tuple[int, Message]]:
        """Return the messages of a leased row with their indexes. Raises: DamagedChunk."""
        indexes = list(row.bits.search(1))
        return list(zip(indexes, self.load(chunks[row.number or 0], row.level, indexes, row.count), strict=True))

    def load(self, chunk: Chunk | DamagedChunk, level: int, indexes: list[int], count: int) -> list[Message]:
        """Return the messages at `indexes` of a level whose slot has `count` messages. HOT. Raises: DamagedChunk."""
        if isinstance(chunk, DamagedChunk):
            raise chunk
        chunk.check()
        records = chunk.of(level)
        if len(records) != count:
            raise DamagedChunk(f"it has {len(records)} messages of level {level}, and its slot has {count}")
        runs = chunk.run_of()
        kinds, ends, data = chunk.kinds, chunk.ends, chunk.data
        messages: list[Message] = []
        last_run = -1
        envelope: Envelope | None = None
        header, facts, charge = b"", None, 0
        timestamp_ms = 0
        for index in indexes:
            record = records[index]
            run = runs[record]
            if run != last_run:
                last_run = run
                kind = kinds[run]
                envelope = self._envelopes.get(kind.route)
                if envelope is None:
                    envelope = self._envelope(kind.route)
                header, facts, charge = self._known(kind.header)
                timestamp_ms = kind.timestamp_ms
            assert envelope is not None and facts is not None
            start, stop = ends[record], ends[record + 1]
            messages.append(Message(envelope, header, data[start:stop], charge + stop - start, facts, timestamp_ms))
        return messages


def _checksum(head: bytes, index: bytes) -> int:
    return int(crc32c(index, crc32c(head[CHECKSUM_AT + 4 :], crc32c(head[:CHECKSUM_AT]))))


def _octets(values: array[int]) -> bytes:
    if SWAPS:
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def _array(typecode: str, data: bytes, at: int, count: int) -> array[int]:
    values: array[int] = array(typecode)
    values.frombytes(data[at : at + count * values.itemsize])
    if SWAPS:
        values.byteswap()
    return values
