"""Convert headers tables to JSON text, and back to the same octets.

The types that clients mostly use are written as plain JSON:

    S  long string    "text"                    F  table     {"name": value, ...}
    t  boolean        true, false               A  array     [value, ...]
    I  32-bit integer a whole number            V  void      null
    l  64-bit integer a whole number beyond 32 bits
    d  double         a number with a point or an exponent

All others are objects with one key, `$` and the type octet:

    {"$b": -1} {"$B": 255} {"$s": -1} {"$u": 65535} {"$i": 5} {"$l": 5} {"$L": 5}   integers of other types
    {"$f": 0.5}                      32-bit float
    {"$D": "-1.50"}                  decimal, with its digits and scale; the digits are signed, as clients encode them
    {"$T": 1700000000}               timestamp in seconds
    {"$x": "AAEC"}                   byte array, Base64
    {"$d": "7ff8000000000000"}, {"$f": "7fc00000"}   NaN and infinity, their octets in hexadecimal
    {"$t": 2}                        true, encoded as another octet than 1
    {"$F": {...}}                    a table with a single key that begins with `$`

Octets that are not UTF-8 are written as `\\udc80` to `\\udcff`, like Python's surrogateescape. A name that is repeated
in a table is repeated in the object.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final, NoReturn

from broker.amqp.table_writer import counted
from broker.amqp.wire import LENGTH, SHORT_STRING_MAX_BYTES, TIMESTAMP

INTEGERS: Final = {kind: struct.Struct(f">{layout}") for kind, layout in zip("bBsuIilL", "bBhHiIqq", strict=True)}
FLOATS: Final = {"f": struct.Struct(">f"), "d": struct.Struct(">d")}
DECIMAL: Final = struct.Struct(">Bi")
HALF_PAIRS: Final = re.compile("[\ud800-\udfff]")

Text = tuple[str, int]  # a value as JSON, and its end offset


class BadHeaderJson(ValueError):
    """A text that does not describe a headers table; the message is one line."""


# ---- to JSON


def table_to_json(octets: bytes) -> str:
    """Return a headers table, which includes its length prefix, as JSON. Cost: linear.

    Raises: ValueError if the octets are not a table; RecursionError for a table nested deeper than a broker accepts.
    """
    try:
        text, end = _table(octets, 0)
    except (IndexError, struct.error, KeyError):
        raise ValueError("the headers are cut short, or of an unknown type") from None
    if end != len(octets):
        raise ValueError("the headers do not end where they say")
    return text


def _table(octets: bytes, at: int) -> Text:
    start, end = _extent(octets, at)
    at = start
    members: list[str] = []
    first = ""
    while at < end:
        key_at = at + 1
        at = key_at + octets[at]
        name = _quoted(octets[key_at:at])
        if not members:
            first = name
        value, at = _READERS[octets[at]](octets, at + 1)
        members.append(f"{name}: {value}")
    if at != end:
        raise IndexError
    if len(members) == 1 and first[1] == "$":
        return f'{{"$F": {{{members[0]}}}}}', end
    return f"{{{', '.join(members)}}}", end


def _array(octets: bytes, at: int) -> Text:
    at, end = _extent(octets, at)
    values: list[str] = []
    while at < end:
        value, at = _READERS[octets[at]](octets, at + 1)
        values.append(value)
    if at != end:
        raise IndexError
    return f"[{', '.join(values)}]", end


def _extent(octets: bytes, at: int) -> tuple[int, int]:
    start = at + 4
    end = start + int(LENGTH.unpack_from(octets, at)[0])
    if end > len(octets):
        raise IndexError
    return start, end


def _quoted(octets: bytes) -> str:
    try:
        return encode_basestring(octets.decode())
    except UnicodeDecodeError:
        text = encode_basestring(octets.decode("utf-8", "surrogateescape"))
        return HALF_PAIRS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _string(octets: bytes, at: int) -> Text:
    start, end = _extent(octets, at)
    return _quoted(octets[start:end]), end


def _bytes(octets: bytes, at: int) -> Text:
    start, end = _extent(octets, at)
    return f'{{"$x": "{b64encode(octets[start:end]).decode()}"}}', end


def _boolean(octets: bytes, at: int) -> Text:
    octet = octets[at]
    return ("false", "true")[octet] if octet < 2 else f'{{"$t": {octet}}}', at + 1


def _decimal(octets: bytes, at: int) -> Text:
    scale, digits = DECIMAL.unpack_from(octets, at)
    return f'{{"$D": "{Decimal(digits).scaleb(-scale)}"}}', at + 5


def _integer(kind: str) -> Callable[[bytes, int], Text]:
    layout = INTEGERS[kind]
    unpack_from, width = layout.unpack_from, layout.size

    def read(octets: bytes, at: int) -> Text:
        number = unpack_from(octets, at)[0]
        plain = kind == "I" or (kind == "l" and not _short(number))
        return str(number) if plain else f'{{"${kind}": {number}}}', at + width

    return read


def _short(number: int) -> bool:
    return -(1 << 31) <= number < 1 << 31


def _float(kind: str) -> Callable[[bytes, int], Text]:
    layout = FLOATS[kind]
    width = layout.size

    def read(octets: bytes, at: int) -> Text:
        number = layout.unpack_from(octets, at)[0]
        if not isfinite(number):
            return f'{{"${kind}": "{octets[at : at + width].hex()}"}}', at + width
        return repr(number) if kind == "d" else f'{{"$f": {number!r}}}', at + width

    return read


_READERS: Final[dict[int, Callable[[bytes, int], Text]]] = {
    **{ord(kind): _integer(kind) for kind in INTEGERS},
    **{ord(kind): _float(kind) for kind in FLOATS},
    ord("S"): _string,
    ord("x"): _bytes,
    ord("t"): _boolean,
    ord("D"): _decimal,
    ord("T"): lambda octets, at: (f'{{"$T": {TIMESTAMP.unpack_from(octets, at)[0]}}}', at + 8),
    ord("V"): lambda _octets, at: ("null", at),
    ord("F"): _table,
    ord("A"): _array,
}


# ---- from JSON


class _Members(list[tuple[str, Any]]):
    """The members of an object, in order, including repeated names."""


def json_to_table(text: str) -> bytes:
    """Return the headers table that a text describes, including its length prefix. Raises: BadHeaderJson."""
    try:
        found = json.loads(text, object_pairs_hook=_Members, parse_constant=_refuse)
        if not isinstance(found, _Members):
            raise BadHeaderJson("headers are a JSON object")
        if len(found) == 1 and found[0][0] == "$F":
            found = found[0][1]
        return _members(found)
    except BadHeaderJson:
        raise
    except (ValueError, TypeError, AttributeError, struct.error, InvalidOperation, RecursionError) as error:
        raise BadHeaderJson(f"headers that cannot be a table: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise BadHeaderJson(f"{constant} is not a number")


def _members(members: _Members) -> bytes:
    if not isinstance(members, _Members):
        raise BadHeaderJson("a table is a JSON object")
    return counted(b"".join(_name(name) + _value(value) for name, value in members))


def _name(name: str) -> bytes:
    octets = name.encode("utf-8", "surrogateescape")
    if len(octets) > SHORT_STRING_MAX_BYTES:
        raise BadHeaderJson(f"the name of a header cannot have {len(octets)} octets")
    return bytes([len(octets)]) + octets


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return b"S" + counted(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        kind = "I" if _short(value) else "l"
        return kind.encode() + INTEGERS[kind].pack(value)
    if isinstance(value, float):
        return b"d" + FLOATS["d"].pack(value)
    if value is None:
        return b"V"
    if not isinstance(value, _Members):
        return b"A" + counted(b"".join(map(_value, value)))
    if len(value) == 1 and value[0][0].startswith("$"):
        return _tagged(*value[0])
    return b"F" + _members(value)


def _tagged(tag: str, value: Any) -> bytes:
    kind = tag[1:]
    octet = kind.encode()
    if kind in INTEGERS:
        return octet + INTEGERS[kind].pack(value)
    if kind in FLOATS:
        return octet + (_float_octets(kind, value) if isinstance(value, str) else FLOATS[kind].pack(value))
    match kind:
        case "F":
            return b"F" + _members(value)
        case "x":
            return b"x" + counted(b64decode(value, validate=True))
        case "T":
            return b"T" + TIMESTAMP.pack(value)
        case "D":
            return _decimal_octets(Decimal(value))
        case "t":
            return b"t" + bytes([value])
    raise BadHeaderJson(f"there is no field type {tag!r}")


def _decimal_octets(number: Decimal) -> bytes:
    sign, figures, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise BadHeaderJson(f"a decimal that is {number}")
    digits = int("".join(map(str, figures)))
    return b"D" + DECIMAL.pack(-exponent, -digits if sign else digits)


def _float_octets(kind: str, digits: str) -> bytes:
    octets = bytes.fromhex(digits)  # a Python float would not preserve the payload of a NaN
    if len(octets) != FLOATS[kind].size:
        raise BadHeaderJson(f"a float of {len(octets)} octets")
    return octets
