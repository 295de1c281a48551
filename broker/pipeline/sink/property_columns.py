"""The properties of rows as the octets of a content header: as they were, or made of their columns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from broker.amqp.content_header import FLAG_OF, KINDS, measure_header
from broker.amqp.errors import ConnectionFault
from broker.amqp.header_edit import cut_properties
from broker.amqp.table_writer import encode_short_text
from broker.amqp.wire import FLAGS, OCTET_MAX, PROPERTIES_AT, TIMESTAMP
from broker.pipeline.source.header_json import json_to_table

__all__ = ["PROPERTY_COLUMNS", "BadProperties", "PropertyOctets"]

FRONT: Final = bytes(PROPERTIES_AT)  # of a content header: what stands before its properties
NO_PROPERTIES: Final = bytes(2)
KNOWN_MAX: Final = 10_000
PERSISTENT_MODE, TRANSIENT_MODE = 2, 1

# The column of each property, where it has another name.
COLUMN_OF: Final = {"message_type": "type", "timestamp": "app_ts"}
PROPERTY_COLUMNS: Final = tuple(COLUMN_OF.get(name, name) for _, name, _ in KINDS if name != "cluster_id")


class BadProperties(ValueError):
    """The properties of a row that no message can have; one line."""


def _octet(value: Any) -> bytes:
    number = int(value)
    if not 0 <= number <= OCTET_MAX:
        raise BadProperties(f"{number} is no octet")
    return bytes([number])


def _seconds(value: datetime) -> bytes:
    return TIMESTAMP.pack(int(value.timestamp()))


ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "shortstr": encode_short_text,
    "octet": _octet,
    "timestamp": _seconds,
    "table": json_to_table,
}
FIELDS: Final = tuple(
    (COLUMN_OF.get(name, name), name, ENCODERS[kind]) for _, name, kind in KINDS if name != "cluster_id"
)


class PropertyOctets:
    """Returns the property octets of rows, each measured once for all rows that have the same.

    Shapes: `persistent` None leaves the delivery mode as it is.
    """

    def __init__(self, *, persistent: bool | None) -> None:
        self._persistent = persistent
        self._known: dict[Any, bytes | BadProperties] = {}

    def of_raw(self, raw: bytes) -> bytes:
        """Return octets that were a message's before. Raises: BadProperties."""
        return self._remembered(raw, lambda: raw)

    def of_values(self, names: tuple[str, ...], values: tuple[Any, ...]) -> bytes:
        """Return the octets that columns of these names say; null is a property that is not there.

        Raises: BadProperties.
        """
        return self._remembered((names, values), lambda: _encode(dict(zip(names, values, strict=True))))

    def _remembered(self, key: Any, make: Callable[[], bytes]) -> bytes:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[key] = self._checked(make)
        if isinstance(known, BadProperties):
            raise known
        return known

    def _checked(self, make: Callable[[], bytes]) -> bytes | BadProperties:
        try:
            octets = make()
            facts = measure_header(FRONT + octets)
        except BadProperties as bad:
            return bad
        except (ValueError, TypeError, OverflowError) as error:
            return BadProperties(str(error))
        except ConnectionFault as fault:
            return BadProperties(f"properties_raw holds no properties: {fault}")
        beneath = facts if facts.mark is None else facts.mark.facts
        if beneath.fault is not None:
            return BadProperties(beneath.fault)
        if self._persistent is None or beneath.persistent == self._persistent:
            return octets
        return _with_mode(octets, PERSISTENT_MODE if self._persistent else TRANSIENT_MODE)


def _encode(row: dict[str, Any]) -> bytes:
    flags = 0
    pieces = []
    for column, name, encode in FIELDS:
        value = row.get(column)
        if value is None:
            continue
        try:
            pieces.append(encode(value))
        except (ValueError, TypeError, OverflowError) as error:
            raise BadProperties(f"column {column}: {error}") from None
        flags |= FLAG_OF[name]
    return FLAGS.pack(flags) + b"".join(pieces)


def _with_mode(octets: bytes, mode: int) -> bytes:
    pieces = {**cut_properties(FRONT + octets), "delivery_mode": bytes([mode])}
    flags = sum(FLAG_OF[name] for name in pieces)
    return FLAGS.pack(flags) + b"".join([pieces[name] for _, name, _ in KINDS if name in pieces])
