"""Bits between Python and PostgreSQL: a bitarray here is a `bit varying` there.

Format of a bit varying: the number of bits in four bytes, big-endian, then the bits, the first in the highest place of
the first byte. asyncpg would take a bitarray inside a list for an array, so statements are given the packed bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from bitarray import bitarray

__all__ = ["pack_bits", "pack_rows", "unpack_bits"]

_LENGTH: Final = Struct("!i")
BIG: Final = "big"


def pack_bits(bits: bitarray) -> bytes:
    """Return a bitarray as PostgreSQL receives it."""
    if bits.endian != BIG:
        bits = bitarray(bits, endian=BIG)
    return _LENGTH.pack(len(bits)) + bits.tobytes()


def unpack_bits(packed: bytes) -> bitarray:
    """Return what PostgreSQL sent as a bitarray."""
    bits = bitarray(endian=BIG)
    bits.frombytes(packed[_LENGTH.size :])
    del bits[_LENGTH.unpack_from(packed)[0] :]
    return bits


def pack_rows(rows: Sequence[bitarray | None]) -> list[bytes | None]:
    """Return bitarrays as the elements of an array of `bit varying`."""
    return [None if bits is None else pack_bits(bits) for bits in rows]
