"""The format of a slot file: consecutive messages of a queue with an index and checksums. A slot file never changes.

All numbers are little-endian, so that a reader can map the index as it is; parts of AMQP frames stay big-endian.

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

The checksum of a file is that of its tail, which contains those of all other parts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from struct import Struct
from typing import Final

from broker.slot_files.seal_log import BadSealLine, fields_of

FORMAT: Final = 1
HEADER_BYTES: Final = 64
TAIL_BYTES: Final = 64
PERSISTENT: Final = 1
REDELIVERED: Final = 2
INDEX_ROW: Final = Struct("<QqIIIIBBBB4x")  # message id, timestamp, at, header, body, crc, exchange, key, flags, 0

HEADER: Final = Struct("<8sHHI16sQQQ8x")
TAIL: Final = Struct("<QQIIIII20x8s")
MAGIC: Final = b"SLOTMQ\0S"
END_MAGIC: Final = b"SLOTMQ\0E"

assert HEADER.size == HEADER_BYTES
assert TAIL.size == TAIL_BYTES
assert INDEX_ROW.size == 40


class BadSlotFile(Exception):
    """The bytes are not a slot file, or the file is damaged or of a later format."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not a readable slot file: {reason}")


@dataclass(frozen=True, slots=True)
class SlotMeta:
    """The description of a slot file, stored before its tail.

    Shapes: ``store`` is 32 hex digits; ``queue`` is the name of the tap, or of the queue that a snapshot shows, and
        ``number`` that queue's number in its vhost; the ids are first <= id < end, and ``count`` of them have a row;
        ``incarnation`` identifies the run of the broker that wrote the file.
    Units: the timestamps are the earliest and the latest of the rows, or 0 if there are no rows.
    """

    store: str
    seal: int
    vhost: str
    queue: str
    number: int
    first: int
    end: int = 0
    count: int = 0
    first_ts_ms: int = 0
    last_ts_ms: int = 0
    incarnation: str = ""

    def to_json(self) -> bytes:
        """Return the meta as stored in the file."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, block: bytes) -> SlotMeta:
        """Return the meta of a file; ignore fields of a later version. Raises: BadSlotFile."""
        try:
            return cls(*fields_of(json.loads(block), **cls.__annotations__))
        except (ValueError, TypeError, BadSealLine) as error:
            raise BadSlotFile(f"its meta cannot be read: {error}") from error
