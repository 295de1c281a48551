"""Expirations: the text of a message's property `expiration`, and RabbitMQ's reply to a malformed one."""

from __future__ import annotations

import re
from typing import Final

# Ten years, the longest time that RabbitMQ takes (rabbit_misc:check_expiry/1).
EXPIRATION_MAX_MS: Final = 315_360_000_000
INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
PRINTABLE: Final = frozenset({*range(0x20, 0x7F), *range(0xA0, 0x100), *b"\n\r\t\v\b\f\x1b"})
ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\b": r"\b", "\f": r"\f", "\x1b": r"\e"}
ESCAPED: Final = str.maketrans({**ESCAPES, '"': r"\"", "\\": r"\\"})


def parse_expiration(octets: bytes) -> int:
    """Return the time in milliseconds.

    Raises: ValueError with RabbitMQ's reason, an Erlang term; the caller's 406.
    Source: RabbitMQ, rabbit_basic:parse_expiration/1.
    """
    integer = INTEGER.match(octets)
    if integer is None:
        raise ValueError("no_integer")
    end = integer.end()
    if rest := octets[end:]:
        raise ValueError(f"{{leftover_string,{erlang_string(rest)}}}")
    expiration_ms = int(octets)
    if expiration_ms < 0:
        raise ValueError(f"{{value_negative,{expiration_ms}}}")
    if expiration_ms > EXPIRATION_MAX_MS:
        raise ValueError(f"{{value_too_large,{expiration_ms}}}")
    return expiration_ms


def erlang_string(octets: bytes) -> str:
    """Return octets as Erlang prints a list of them: quoted if all are printable."""
    if PRINTABLE.issuperset(octets):
        return f'"{octets.decode("latin-1").translate(ESCAPED)}"'
    return f"[{','.join(map(str, octets))}]"
