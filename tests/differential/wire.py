"""Encodes and decodes AMQP methods, tables and properties with their types, so that any difference is visible.

pamqp supplies only the signatures: its codec loses the types of numbers in tables and which properties are absent.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pamqp import commands

__all__ = ["METHODS", "Typed", "decode_method", "decode_properties", "encode_method", "encode_properties", "fold_name"]


@dataclass(frozen=True, slots=True)
class Typed:
    """A table value with an explicit type letter."""

    letter: str
    value: Any

    def __repr__(self) -> str:
        return f"{self.letter}:{self.value!r}"


def fold_name(name: str) -> str:
    """Return the protocol's name of a method: `queue.declare-ok` for pamqp's `Queue.DeclareOk`."""
    group, verb = name.split(".")
    dashed = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in verb).lstrip("-")
    return f"{group.lower()}.{dashed}"


_COMMANDS: Final[list[Any]] = list(commands.INDEX_MAPPING.values())
METHODS: Final[dict[str, Any]] = {fold_name(method.name): method for method in _COMMANDS}
_BY_INDEX: Final[dict[int, str]] = {method.index: name for name, method in METHODS.items()}
_NUMBERS: Final = {"b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "f": "f", "d": "d", "T": "Q"}
_FIXED: Final = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q", "timestamp": ">Q"}
_PROPERTIES: Final = [
    (name, commands.Basic.Properties.flags[name], commands.Basic.Properties.amqp_type(name))
    for name in commands.Basic.Properties.attributes()
]


# ---- encoding ------------------------------------------------------------------------------------------------------


def _short_string(text: str | bytes) -> bytes:
    octets = text if isinstance(text, bytes) else text.encode()
    return bytes([len(octets)]) + octets


def _long_string(text: str | bytes) -> bytes:
    octets = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(octets)) + octets


def _table_value(value: Any) -> bytes:
    if isinstance(value, Typed):
        return value.letter.encode() + struct.pack(f">{_NUMBERS[value.letter]}", value.value)
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        return b"I" + struct.pack(">i", value) if -(2**31) <= value < 2**31 else b"l" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + _long_string(value)
    if isinstance(value, bytes):
        return b"x" + _long_string(value)
    if isinstance(value, Mapping):
        return b"F" + table(value)
    assert isinstance(value, Sequence), value
    return b"A" + _long_string(b"".join(map(_table_value, value)))


def table(entries: Mapping[str, Any]) -> bytes:
    """Return a field table with its length."""
    return _long_string(b"".join(_short_string(name) + _table_value(value) for name, value in entries.items()))


def _field(kind: str, value: Any) -> bytes:
    if kind == "shortstr":
        return _short_string(value)
    if kind == "longstr":
        return _long_string(value)
    return table(value) if kind == "table" else struct.pack(_FIXED[kind], value)


def encode_method(name: str, fields: Mapping[str, Any]) -> bytes:
    """Return the payload of a method frame; missing fields are zero or empty. Values are not validated."""
    method = METHODS[name]
    unknown = set(fields) - set(method.attributes())
    assert not unknown, f"{name} has no {unknown}"
    payload = struct.pack(">I", method.index)
    bits: list[bool] = []
    for attribute in method.attributes():
        kind = method.amqp_type(attribute)
        if kind == "bit":
            bits.append(bool(fields.get(attribute)))
            continue
        payload += _packed(bits)
        empty: Any = {"shortstr": "", "longstr": "", "table": {}}.get(kind, 0)
        payload += _field(kind, fields.get(attribute, empty))
    return payload + _packed(bits)


def _packed(bits: list[bool]) -> bytes:
    """Return the collected bits as one byte, or nothing if there are none; clear the list."""
    octet = bytes([sum(bit << place for place, bit in enumerate(bits))]) if bits else b""
    bits.clear()
    return octet


def encode_properties(body_size: int, properties: Mapping[str, Any]) -> bytes:
    """Return the payload of a content header frame."""
    flags, values = 0, b""
    unknown = set(properties) - {name for name, _, _ in _PROPERTIES}
    assert not unknown, f"no property is called {unknown}"
    for name, flag, kind in _PROPERTIES:
        if name in properties:
            flags |= flag
            values += _field(kind, properties[name])
    return struct.pack(">HHQH", 60, 0, body_size, flags) + values


# ---- decoding ------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads one payload by offset."""

    def __init__(self, octets: bytes, at: int = 0) -> None:
        self.octets = octets
        self.at = at

    def fixed(self, layout: str) -> Any:
        value = struct.unpack_from(layout, self.octets, self.at)[0]
        self.at += struct.calcsize(layout)
        return value

    def piece(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.octets), "truncated"
        return self.octets[self.at - size : self.at]

    def short_string(self) -> str:
        return _text(self.piece(self.fixed(">B")))

    def long_string(self) -> str:
        return _text(self.piece(self.fixed(">I")))

    def table(self) -> dict[str, Any]:
        end = self.fixed(">I") + self.at
        entries: dict[str, Any] = {}
        while self.at < end:
            name = self.short_string()
            entries[name] = self.value()
        return dict(sorted(entries.items()))

    def value(self) -> Any:
        """Return a table value as JSON; a number of a type other than `l` is Typed, so that its type is compared."""
        letter = chr(self.fixed(">B"))
        if letter == "S":
            return self.long_string()
        if letter == "l":
            return self.fixed(">q")
        if letter == "t":
            return bool(self.fixed(">B"))
        if letter == "V":
            return None
        if letter == "F":
            return self.table()
        if letter == "A":
            end = self.fixed(">I") + self.at
            items = []
            while self.at < end:
                items.append(self.value())
            return items
        if letter == "x":
            return Typed("x", self.long_string())
        return Typed(letter, self.fixed(f">{_NUMBERS[letter]}"))

    def field(self, kind: str) -> Any:
        if kind == "shortstr":
            return self.short_string()
        if kind == "longstr":
            return self.long_string()
        return self.table() if kind == "table" else self.fixed(_FIXED[kind])


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "backslashreplace")


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of a method."""
    index = struct.unpack_from(">I", payload)[0]
    if index not in _BY_INDEX:
        return f"method {index >> 16}.{index & 0xFFFF}", {"arguments": payload[4:].hex()}
    name = _BY_INDEX[index]
    reader, fields = _Reader(payload, 4), {}
    bits, place = 0, 8
    for attribute in METHODS[name].attributes():
        kind = METHODS[name].amqp_type(attribute)
        if kind != "bit":
            place = 8
            fields[attribute] = reader.field(kind)
            continue
        if place == 8:
            bits, place = reader.fixed(">B"), 0
        fields[attribute] = bool(bits >> place & 1)
        place += 1
    return name, fields


def decode_properties(payload: bytes) -> tuple[int, dict[str, Any]]:
    """Return the body size and the properties that are present, in the order of the protocol."""
    body_size, flags = struct.unpack_from(">QH", payload, 4)
    reader = _Reader(payload, 14)
    return body_size, {name: reader.field(kind) for name, flag, kind in _PROPERTIES if flags & flag}
