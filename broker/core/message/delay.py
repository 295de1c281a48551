"""The moments at which held messages are due, as their headers state them.

Source: the plugin rabbitmq_delayed_message_exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from math import ceil, isfinite
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from broker.amqp.header_edit import read_headers
from broker.core.message.message import Message

ISO: Final = "iso8601"
MOMENT_MAX_MS: Final = (1 << 48) - 1  # the latest moment that a queue log can store
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
RECEIVED: Final = "x-slotmq-received"  # a header of a held message that another broker of the overlay published
DELAY_MAX_MS: Final = (1 << 32) - 1  # the plugin's limit: the longest timer in Erlang


class Unreadable(ValueError):
    """The value of a due header does not have its format."""


class DueHeader(NamedTuple):
    """A header that names a time, and the format of its value, one of DUE_FORMATS."""

    name: str
    format: str


def due_headers(text: str) -> tuple[DueHeader, ...]:
    """Return the headers that a policy names: `NAME` or `NAME:FORMAT`, several with commas between them.

    Raises: ValueError for an empty name or an unknown format.
    """
    found = []
    for part in text.split(","):
        name, colon, format_ = part.strip().rpartition(":")
        name, format_ = (name, format_) if colon else (format_, ISO)
        if not name or format_ not in DUE_FORMATS:
            raise ValueError(part.strip())
        found.append(DueHeader(name, format_))
    return tuple(found)


def moment_of(headers: Sequence[DueHeader], header: bytes, from_ms: int, ahead_ms: int) -> int | None:
    """Return the moment in the first of the due headers that a message has, or None if it has none.

    Units: ms on the broker's clock, which is `ahead_ms` ahead of wall-clock time. A countdown begins at `from_ms`.
    Raises: Unreadable.
    """
    values = read_headers(header, *[one.name for one in headers])
    for one in headers:
        value = values.get(one.name)
        if value is not None:
            is_countdown, read = DUE_FORMATS[one.format]
            try:
                moment_ms = read(value) + (from_ms if is_countdown else ahead_ms)
            except (ValueError, TypeError, ArithmeticError):
                moment_ms = MOMENT_MAX_MS + 1
            if moment_ms > MOMENT_MAX_MS:
                raise Unreadable(f"header '{one.name}' is not of the format {one.format}")
            return moment_ms
    return None


def _from_text(value: Any) -> int:
    """Parse a date and time, in UTC if it has no zone, into ms since 1970."""
    at = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return -((_EPOCH - at) // _MILLISECOND)  # rounded up, so that no message is early


def _number(unit_ms: int, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise TypeError(value)
    number = Decimal(value)
    if not isfinite(number):
        raise ValueError(value)
    return ceil(number * unit_ms)


# By format: whether the value is a countdown, and the function that parses it into ms.
DUE_FORMATS: Final[dict[str, tuple[bool, Callable[[Any], int]]]] = {
    ISO: (False, _from_text),
    "ms": (False, partial(_number, 1)),
    "s": (False, partial(_number, 1000)),
    "countdown-ms": (True, partial(_number, 1)),
    "countdown-s": (True, partial(_number, 1000)),
}


@mypyc_attr(acyclic=True)
class HeldMessage(Message):
    """A message that waits in a holding level. Units: ``due_ms`` is the moment at which it is due."""

    __slots__ = ("due_ms",)

    def __init__(self, message: Message, due_ms: int) -> None:
        """Copy a message; the copy has no record yet."""
        super().__init__(
            message.envelope, message.header, message.body, message.charge, message.facts, message.timestamp_ms
        )
        self.due_ms = due_ms


def delay_of(value: Any) -> int | None:
    """Return the delay that an x-delay header requests, or None if it requests none.

    Units: milliseconds.
    Source: the plugin, get_delay/1: text is read as an integer, fractions are cut off, values over 32 bits are ignored.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | float | Decimal):
        return None
    try:
        delay_ms = int(value)
    except (ValueError, OverflowError):
        return None
    return delay_ms if 0 < delay_ms <= DELAY_MAX_MS else None


def due_ms_of(message: Message | None) -> int:
    """Return when a held message is due, or 0 for a message that was settled or lost."""
    if message is None:
        return 0
    if isinstance(message, HeldMessage):
        return message.due_ms
    return message.timestamp_ms + (delay_of(message.facts.delay) or 0)
