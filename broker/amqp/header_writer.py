"""Content headers encoded from values, for messages that the broker itself publishes."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from broker.amqp.content_header import KINDS
from broker.amqp.table_writer import encode_short_text, encode_table
from broker.amqp.wire import FLAGS, OCTET_MAX, TIMESTAMP

__all__ = ["encode_header"]

FRONT: Final = Struct(">HHQ")  # class, weight, body size
BASIC: Final = 60
TIMESTAMP_MAX: Final = (1 << 64) - 1


def encode_header(properties: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return the content header of a message with these properties, named as in pamqp.

    Units: a timestamp is in seconds since the epoch.
    Raises: ValueError, naming the property, for an unknown property or a value that it cannot hold.
    """
    kinds = {name: kind for _, name, kind in KINDS}
    for name in properties:
        if name not in kinds:
            raise ValueError(f"there is no property '{name}': there are {', '.join(kinds)}")
    flags, pieces = 0, []
    for flag, name, kind in KINDS:
        if name in properties:
            flags |= flag
            try:
                pieces.append(_encode(kind, properties[name]))
            except ValueError as error:
                raise ValueError(f"property {name}: {error}") from None
    return b"".join((FRONT.pack(BASIC, 0, body_bytes), FLAGS.pack(flags), *pieces))


def _encode(kind: str, value: Any) -> bytes:
    if kind == "shortstr" and isinstance(value, str):
        return encode_short_text(value)
    if kind == "table" and isinstance(value, dict):
        return encode_table(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if kind == "octet" and 0 <= value <= OCTET_MAX:
            return bytes([value])
        if kind == "timestamp" and 0 <= value <= TIMESTAMP_MAX:
            return TIMESTAMP.pack(value)
    wanted = {"shortstr": "a text", "table": "an object", "octet": "a number from 0 to 255", "timestamp": "seconds"}
    raise ValueError(f"it should be {wanted[kind]}")
