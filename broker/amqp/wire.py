"""Sizes and layouts of AMQP 0-9-1 that several modules read and write. Source: section 4.2."""

from __future__ import annotations

from struct import Struct
from typing import Final

FRAME_HEAD: Final = Struct(">BHI")  # type, channel, size of the payload
FRAME_END_OCTET: Final = b"\xce"
PROPERTIES_AT: Final = 12  # offset of the flags in a content header, after class, weight and body size
FLAGS: Final = Struct(">H")  # a bit for each property that follows
LENGTH: Final = Struct(">I")  # of a long string, table or array
DECIMAL: Final = Struct(">BI")  # scale and unscaled value
TIMESTAMP: Final = Struct(">Q")
OCTET_MAX: Final = 255
INT_64_MAX: Final = (1 << 63) - 1
TABLE_NESTING_MAX: Final = 64  # levels of tables and arrays that the broker itself reads or writes
SHORT_STRING_MAX_BYTES: Final = 255


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return the frame of a payload."""
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END_OCTET
