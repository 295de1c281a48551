"""The login mechanisms: name and password of a client's answer, which no text ever quotes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.amqp.errors import ConnectionFault, Refused
from broker.amqp.tables import TableReader

__all__ = ["AMQPLAIN", "EXTERNAL", "PASSWORDS", "PLAIN", "split_amqplain", "split_plain"]

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"


def split_plain(response: bytes) -> tuple[str, bytes]:
    """Return the name and the password of a PLAIN answer: NUL name NUL password.

    An authorization identity in front is refused, as in RabbitMQ: no user acts for another.
    Raises: Refused, without quoting the answer. Source: RFC 4616.
    """
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise malformed(PLAIN)
    try:
        return parts[1].decode(), parts[2]
    except UnicodeDecodeError:
        raise malformed(PLAIN) from None


def split_amqplain(response: bytes) -> tuple[str, bytes]:
    """Return the name and the password of an AMQPLAIN answer: a field table, without its length, of two long strings.

    Raises: Refused, without quoting the answer. Source: rabbit_auth_mechanism_amqplain.
    """
    payload = len(response).to_bytes(4, "big") + response
    values: dict[bytes, bytes] = {}
    try:
        reader = TableReader(payload)
        reader.skip_table(0, len(payload))
        for entry in reader.entries(0):
            if payload[entry.value_at] == ord("S"):
                values[entry.key] = payload[entry.value_at + 5 : entry.end]
        return values[b"LOGIN"].decode(), values[b"PASSWORD"]
    except (ConnectionFault, KeyError, UnicodeDecodeError):
        raise malformed(AMQPLAIN) from None


def malformed(mechanism: str) -> Refused:
    """Return the refusal of an answer that cannot be read; RabbitMQ closes the connection without a word."""
    return Refused(f"{mechanism} login refused: response invalid", told=False)


PASSWORDS: Final[dict[str, Callable[[bytes], tuple[str, bytes]]]] = {PLAIN: split_plain, AMQPLAIN: split_amqplain}
