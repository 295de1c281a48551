"""The two timestamps in a body's first bytes: when the message was due, and when it was sent."""

from __future__ import annotations

from struct import Struct
from typing import Final

STAMP: Final = Struct(">QQ")
STAMP_BYTES: Final = STAMP.size
DUE_BYTES: Final = 8  # a body with room for one timestamp carries only the due time
