"""Expirations: valid values, and RabbitMQ's texts for invalid ones."""

from __future__ import annotations

import re

import pytest

from broker.amqp.header_facts import parse_expiration


@pytest.mark.parametrize(
    ("octets", "expiration_ms"),
    [(b"0", 0), (b"5", 5), (b"+5", 5), (b"-0", 0), (b"007", 7), (b"315360000000", 315_360_000_000)],
)
def test_times(octets: bytes, expiration_ms: int) -> None:
    """A valid expiration is a whole number of milliseconds up to ten years; a sign and leading zeros are allowed."""
    assert parse_expiration(octets) == expiration_ms


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"", "no_integer"),
        (b"+", "no_integer"),
        (b"--5", "no_integer"),
        (b" 5", "no_integer"),
        (b"\xd9\xa3", "no_integer"),
        (b"5a", '{leftover_string,"a"}'),
        (b"5_0", '{leftover_string,"_0"}'),
        (b'5"\\\n', '{leftover_string,"\\"\\\\\\n"}'),
        (b"5\x01\t", "{leftover_string,[1,9]}"),
        (b"5\x7f", "{leftover_string,[127]}"),
        (b"-1", "{value_negative,-1}"),
        (b"315360000001", "{value_too_large,315360000001}"),
        (b"9" * 255, "{value_too_large," + "9" * 255 + "}"),
    ],
)
def test_reasons(octets: bytes, reason: str) -> None:
    """An invalid expiration is refused with the Erlang term of RabbitMQ's text."""
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parse_expiration(octets)
