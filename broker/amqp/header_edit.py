"""Encode content headers, and edit them without loss: entries that do not change keep their octets.

Dead letters, for example, differ from the published message in a few entries. Decoding and encoding the rest could
change its octets, such as the widths of numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from struct import Struct
from typing import Any, Final

from broker.amqp.content_header import FLAG_OF, KINDS, WIDTHS
from broker.amqp.header_facts import MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX
from broker.amqp.table_writer import counted, encode_entry, encode_short_text, encode_table, encode_text
from broker.amqp.tables import TableReader
from broker.amqp.wire import FLAGS, LENGTH, OCTET_MAX, PROPERTIES_AT, TIMESTAMP

FRONT: Final = Struct(">HHQ")  # class, weight, body size
BASIC: Final = 60
TIMESTAMP_MAX: Final = (1 << 64) - 1
NO_CHANGES: Final[Mapping[str, Any]] = {}


def encode_header(properties: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return the content header of a message with these properties, named as in pamqp.

    Units: a timestamp is in seconds since the epoch. Shapes: `headers` is a dict, or the encoded entries of a table.
    Raises: ValueError, naming the property, for an unknown property or an invalid value.
    """
    kinds = {name: kind for _, name, kind in KINDS}
    for name in properties:
        if name not in kinds:
            raise ValueError(f"unknown property '{name}'; known are {', '.join(kinds)}")
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
    if kind == "table" and isinstance(value, dict | bytes):
        return counted(value) if isinstance(value, bytes) else encode_table(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if kind == "octet" and 0 <= value <= OCTET_MAX:
            return bytes([value])
        if kind == "timestamp" and 0 <= value <= TIMESTAMP_MAX:
            return TIMESTAMP.pack(value)
    wanted = {"shortstr": "a text", "table": "an object", "octet": "a number from 0 to 255", "timestamp": "seconds"}
    raise ValueError(f"it should be {wanted[kind]}")


def edit_header(
    header: bytes,
    *,
    set_headers: Mapping[str, Any] = NO_CHANGES,
    drop_headers: Collection[str] = (),
    set_properties: Mapping[str, str] = NO_CHANGES,
    drop_properties: Collection[str] = (),
) -> bytes:
    """Return a measured content header with these changes.

    A header that is set replaces every entry of its name and follows the others. The headers table is created if it is
    needed, and stays when it becomes empty. `set_properties` contains text properties, such as reply_to.
    Raises: ValueError for a value that a table or a short string cannot contain.
    Cost: linear in the header's octets. The result may exceed a consumer's frame size, as in RabbitMQ.
    """
    properties = cut_properties(header)
    if set_headers or drop_headers:
        table = edit_table(properties.get("headers"), set_headers, drop_headers)
        if table is not None:
            properties["headers"] = table
    for name in drop_properties:
        properties.pop(name, None)
    for name, text in set_properties.items():
        properties[name] = encode_short_text(text)
    flags = sum(FLAG_OF[name] for name in properties)
    octets = [properties[name] for _, name, _ in KINDS if name in properties]
    return b"".join((header[:PROPERTIES_AT], FLAGS.pack(flags), *octets))


def read_headers(header: bytes, *names: str) -> dict[str, Any]:
    """Return the named headers that a measured content header contains; of equal names, the first counts.

    Octets that are not UTF-8 in the keys of nested tables are escaped, so that encoding a value restores them.
    """
    sought = {octets: name for name in names if (octets := encode_text(name)) in header}
    table = cut_properties(header).get("headers") if sought else None
    if table is None:
        return {}
    inner = reader(table)
    found = [entry for entry in inner.entries(0) if entry.key in sought]
    return {sought[entry.key]: inner.value(entry.value_at, entry.end) for entry in reversed(found)}


def read_text(header: bytes, name: str) -> str | None:
    """Return a text property of a measured header, or None if it is absent."""
    octets = cut_properties(header).get(name)
    return None if octets is None else octets[1:].decode("utf-8", "surrogateescape")


def cut_properties(header: bytes) -> dict[str, bytes]:
    """Return the octets of each property that is present, by name."""
    flags: int = FLAGS.unpack_from(header, PROPERTIES_AT)[0]
    at = PROPERTIES_AT + FLAGS.size
    properties: dict[str, bytes] = {}
    for flag, name, kind in KINDS:
        if flags & flag:
            start = at
            if kind == "table":
                at += LENGTH.size + int(LENGTH.unpack_from(header, at)[0])
            else:
                at += WIDTHS.get(kind) or 1 + header[at]
            properties[name] = header[start:at]
    return properties


def edit_table(table: bytes | None, set_headers: Mapping[str, Any], drop_headers: Collection[str]) -> bytes | None:
    """Return the headers table with these changes, or None if there is no table and no entry to add."""
    added = b"".join(encode_entry(key, value) for key, value in set_headers.items())
    if table is None:
        return counted(added) if added else None
    gone = {encode_text(key) for key in (*set_headers, *drop_headers)}
    kept = b"".join(table[entry.start : entry.end] for entry in reader(table).entries(0) if entry.key not in gone)
    return counted(kept + added)


def reader(table: bytes) -> TableReader:
    """Return a reader of a measured table."""
    return TableReader(table, MEASURED_DEPTH_MAX, MEASURED_ENTRIES_MAX, errors="surrogateescape")
