"""The data types of MQTT: integers, variable byte integers, UTF-8 strings and binary data.

Source: MQTT 5.0, section 1.5.
"""

from __future__ import annotations

from typing import Final

from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import MALFORMED

TEXT_MAX_BYTES: Final = 65_535
VARINT_MAX: Final = 268_435_455


class Reader:
    """Read the fields of one packet in order. Raises: PacketError 0x81 for a field that exceeds the packet."""

    __slots__ = ("_at", "_end", "_octets")

    def __init__(self, octets: bytes, at: int, end: int) -> None:
        self._octets = octets
        self._at = at
        self._end = end

    @property
    def left(self) -> int:
        return self._end - self._at

    def _advance(self, count: int) -> int:
        """Advance by a number of octets, and return the position before them."""
        at = self._at
        if count > self._end - at:
            raise PacketError(MALFORMED, "a packet that ends too early")
        self._at = at + count
        return at

    def octet(self) -> int:
        return self._octets[self._advance(1)]

    def two(self) -> int:
        """Read a two byte integer."""
        at = self._advance(2)
        return self._octets[at] << 8 | self._octets[at + 1]

    def four(self) -> int:
        """Read a four byte integer."""
        at = self._advance(4)
        return int.from_bytes(self._octets[at : at + 4], "big")

    def varint(self) -> int:
        """Read a variable byte integer, which has at most four octets and is encoded as briefly as possible."""
        value = shift = 0
        while True:
            octet = self.octet()
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                if shift and not octet:
                    raise PacketError(MALFORMED, "a variable byte integer with needless octets")
                return value
            shift += 7
            if shift > 21:
                raise PacketError(MALFORMED, "a variable byte integer of more than four octets")

    def binary(self) -> bytes:
        count = self.two()
        at = self._advance(count)
        return self._octets[at : at + count]

    def text(self) -> str:
        """Read a UTF-8 string. Raises: as `check_text`."""
        return check_text(self.binary())

    def finish(self) -> None:
        """Check that all octets were read."""
        if self._at != self._end:
            raise PacketError(MALFORMED, f"{self._end - self._at} octets after the end of a packet's fields")


def check_text(octets: bytes) -> str:
    """Decode a UTF-8 string. Raises: PacketError 0x81 for octets that are not UTF-8, and for a null character."""
    try:
        value = octets.decode()
    except UnicodeDecodeError:
        raise PacketError(MALFORMED, "a string that is not UTF-8") from None
    if "\0" in value:
        raise PacketError(MALFORMED, "a string with a null character")
    return value


OCTETS: Final = [bytes((value,)) for value in range(0x100)]


def varint(value: int) -> bytes:
    """Encode a variable byte integer. HOT."""
    if value < 0x80:
        return OCTETS[value]
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def binary(octets: bytes) -> bytes:
    """Encode binary data of at most 65,535 octets, preceded by its length."""
    return len(octets).to_bytes(2, "big") + octets


def text(value: str) -> bytes:
    """Encode a UTF-8 string of at most 65,535 octets, preceded by its length."""
    return binary(value.encode())
