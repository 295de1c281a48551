"""Bits as PostgreSQL sends and receives them."""

from __future__ import annotations

from bitarray import bitarray
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.database_rows import pack_bits, pack_rows, unpack_bits

BITS = st.text("01", max_size=100).map(bitarray)


@given(BITS)
def test_bits_come_back_as_they_went(bits: bitarray) -> None:
    """Length and order stay, also where the last byte is not full."""
    assert unpack_bits(pack_bits(bits)) == bits


def test_the_first_bit_is_the_highest() -> None:
    """The format is the binary one of `bit varying`."""
    assert pack_bits(bitarray("100000001")) == b"\0\0\0\x09\x80\x80"
    assert pack_bits(bitarray("100000001", endian="little")) == b"\0\0\0\x09\x80\x80"


def test_a_row_may_have_no_bits() -> None:
    """None is null."""
    assert pack_rows([None, bitarray("1")]) == [None, b"\0\0\0\x01\x80"]
