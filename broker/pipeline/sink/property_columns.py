"""The properties of rows as the octets of a content header: unchanged, encoded from columns, or numbered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from struct import Struct
from typing import Any, Final, TypeVar

from broker.amqp.content_header import FLAG_OF, KINDS, measure_header
from broker.amqp.errors import ConnectionFault
from broker.amqp.header_edit import cut_properties, edit_header
from broker.amqp.producer_mark import OWN_TABLE, PRODUCER, SEQUENCE
from broker.amqp.table_writer import counted, encode_short_text
from broker.amqp.tables import TableReader
from broker.amqp.wire import FLAGS, OCTET_MAX, PROPERTIES_AT, TIMESTAMP
from broker.pipeline.source.header_json import json_to_table

SEQUENCE_OCTETS: Final = Struct(">q").pack  # encodes a sequence number
PRODUCER_MAX_BYTES: Final = 255 - 2 * 33  # the longest name that leaves room for store and incarnation
PLACE_LENGTH: Final = 3  # seal, slot and offset; store and incarnation may follow
HEADER_START: Final = bytes(PROPERTIES_AT)  # stands for the part of a content header before the property flags
NO_PROPERTIES: Final = bytes(2)
MEMO_MAX: Final = 10_000
PERSISTENT_MODE, TRANSIENT_MODE = 2, 1
# Properties whose column has another name.
COLUMN_OF: Final = {"message_type": "type", "timestamp": "app_ts"}
PROPERTY_NAMES: Final = tuple(FLAG_OF)
PROPERTY_COLUMNS: Final = tuple(COLUMN_OF.get(name, name) for _, name, _ in KINDS if name != "cluster_id")


Key = TypeVar("Key")
Value = TypeVar("Value")


def producer_of(name: str, place: object) -> str:
    """Append a message's store and incarnation to a producer name, because seal numbers recur in other histories.

    Shapes: a place is seal, slot and offset, followed by store and incarnation if they are known.
    """
    origin = place[PLACE_LENGTH:] if isinstance(place, tuple) else ()
    return ".".join([name, *filter(None, origin)])


class Memo(dict[Key, Value]):
    """A cache of the results of a function by argument. It is cleared when it is full."""

    def __init__(self, make: Callable[[Key], Value], maximum: int = MEMO_MAX) -> None:
        super().__init__()
        self._make = make
        self._most = maximum

    def __missing__(self, key: Key) -> Value:
        if len(self) >= self._most:
            self.clear()
        value = self[key] = self._make(key)
        return value


class NumberedProperties:
    """Write one producer's sequence numbers into properties.

    Shapes: `parts` maps well-formed properties to the octets before and after the number. An earlier number is removed.
    """

    def __init__(self, producer: str) -> None:
        self._entries = _entry(PRODUCER, b"S" + counted(producer.encode()))
        self.parts = Memo(self._split)

    def _split(self, properties: bytes) -> tuple[bytes, bytes]:
        found = cut_properties(HEADER_START + properties)
        table = found.get("headers")
        kept = b""
        if table is not None:
            entries = TableReader(table).entries(0)
            kept = b"".join([table[entry.start : entry.end] for entry in entries if entry.key not in MARK_NAMES])
            if not kept:
                kept = _entry(OWN_TABLE, b"t\x01")
        number = bytes([len(SEQUENCE)]) + SEQUENCE + b"l"
        headers = counted(kept + self._entries + number + bytes(8))
        pieces = _in_order({**found, "headers": headers})
        octets, place = list(pieces.values()), list(pieces).index("headers")
        return b"".join(octets[:place]) + headers[:-8], b"".join(octets[place + 1 :])


MARK_NAMES: Final = frozenset((PRODUCER, SEQUENCE, OWN_TABLE))


def _entry(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


class BadProperties(ValueError):
    """Properties of a row that cannot be encoded; the text is one line."""


def _octet(value: Any) -> bytes:
    number = int(value)
    if not 0 <= number <= OCTET_MAX:
        raise BadProperties(f"{number} is not an octet")
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


@dataclass(frozen=True, slots=True)
class HeaderChanges:
    """Headers to set, and headers and properties to drop."""

    set_headers: Mapping[str, str] = field(default_factory=dict)
    drop_headers: tuple[str, ...] = ()
    drop_properties: tuple[str, ...] = ()

    def __call__(self, properties: bytes) -> bytes:
        """Return the changed property octets, which begin with the property flags."""
        if self == HeaderChanges():
            return properties
        return edit_header(
            HEADER_START + properties,
            set_headers=self.set_headers,
            drop_headers=self.drop_headers,
            drop_properties=self.drop_properties,
        )[PROPERTIES_AT:]


class PropertyOctets:
    """The property octets of rows, cached by the values of the properties.

    Shapes: `persistent` sets the delivery mode; None keeps it, or sets persistent if a row of columns has none.
    """

    def __init__(self, *, persistent: bool | None, changes: HeaderChanges) -> None:
        self._persistent = persistent
        self._changes = changes
        self._known: Memo[Any, bytes | BadProperties] = Memo(self._checked)

    def of_row(self, raw: bytes | None, names: tuple[str, ...], values: tuple[Any, ...]) -> bytes | BadProperties:
        """Return the property octets of a row, from `raw` or, if that is None, from columns; null is no property."""
        return self._known[(names, values) if raw is None else raw]

    def _encoded(self, row: dict[str, Any]) -> bytes:
        if row.get("delivery_mode") is None and self._persistent is not False:
            row["delivery_mode"] = PERSISTENT_MODE
        pieces: dict[str, bytes] = {}
        for column, name, encode in FIELDS:
            value = row.get(column)
            if value is None:
                continue
            try:
                pieces[name] = encode(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise BadProperties(f"column {column}: {error}") from None
        return b"".join(_in_order(pieces).values())

    def _checked(self, row: Any) -> bytes | BadProperties:
        try:
            octets = row if isinstance(row, bytes) else self._encoded(dict(zip(*row, strict=True)))
            measure_header(HEADER_START + octets)
            octets = self._changes(octets)
            facts = measure_header(HEADER_START + octets)
        except BadProperties as bad:
            return bad
        except (ValueError, TypeError, OverflowError) as error:
            return BadProperties(str(error))
        except ConnectionFault as fault:
            return BadProperties(f"properties_raw is not valid: {fault}")
        facts_inside = facts if facts.mark is None else facts.mark.facts
        if facts_inside.fault is not None:
            return BadProperties(facts_inside.fault)
        if self._persistent is None or facts_inside.persistent == self._persistent:
            return octets
        mode = bytes([PERSISTENT_MODE if self._persistent else TRANSIENT_MODE])
        return b"".join(_in_order({**cut_properties(HEADER_START + octets), "delivery_mode": mode}).values())


def _in_order(pieces: dict[str, bytes]) -> dict[str, bytes]:
    """Return the octets of the property flags, then those of the properties in the order of a content header."""
    flags = FLAGS.pack(sum(FLAG_OF[name] for name in pieces))
    return {"flags": flags, **{name: pieces[name] for _, name, _ in KINDS if name in pieces}}
