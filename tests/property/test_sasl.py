"""SASL responses of any octets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.amqp.errors import Refused
from broker.core.auth.logins import PASSWORDS, split_amqplain, split_plain


def field(key: bytes, value: bytes) -> bytes:
    """Return an entry of a field table: a long string."""
    return bytes((len(key),)) + key + b"S" + len(value).to_bytes(4, "big") + value


@pytest.mark.parametrize("mechanism", sorted(PASSWORDS))
@given(response=st.one_of(st.binary(max_size=64), st.lists(st.sampled_from(
    [field(b"LOGIN", b"a"), field(b"PASSWORD", b"b"), b"\x05LOGINF\0\0\0\x05\1aA\0\0", b"\0", b"\xff", b"\0a\0b"]
), max_size=4).map(b"".join)))  # fmt: skip
def test_an_answer_is_read_or_refused_and_nothing_else(mechanism: str, response: bytes) -> None:
    """Any response is read or refused; no other exception escapes, and the refusal does not quote the response."""
    try:
        name, password = PASSWORDS[mechanism](response)
    except Refused as refused:
        assert refused.reason == f"{mechanism} login refused: response invalid"
        assert not refused.told
    else:
        assert name.encode() in response and password in response


@given(name=st.text(alphabet=st.characters(exclude_characters="\0"), max_size=30), password=st.binary(max_size=300))
def test_both_mechanisms_read_the_same(name: str, password: bytes) -> None:
    """PLAIN and AMQPLAIN read any password equally, except that PLAIN cannot contain NUL."""
    try:
        octets = name.encode()
    except UnicodeEncodeError:
        return
    assert split_amqplain(field(b"LOGIN", octets) + field(b"PASSWORD", password)) == (name, password)
    if b"\0" not in password:
        assert split_plain(b"\0" + octets + b"\0" + password) == (name, password)
