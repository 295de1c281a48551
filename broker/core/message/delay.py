"""When a message is due: by its header x-delay, or by the moment that the broker gave it.

Source: the plugin rabbitmq_delayed_message_exchange.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from mypy_extensions import mypyc_attr

from broker.core.message.message import Message

__all__ = ["DELAY_MAX_MS", "RECEIVED", "HeldMessage", "delay_of", "due_ms_of"]

RECEIVED: Final = "x-slotmq-received"  # while a message waits: another broker of the overlay published it
DELAY_MAX_MS: Final = (1 << 32) - 1  # the plugin's: the longest timer of Erlang


@mypyc_attr(acyclic=True)
class HeldMessage(Message):
    """A message that waits in a holding level. Units: ``due_ms`` is the moment at which it is due."""

    __slots__ = ("due_ms",)

    def __init__(self, message: Message, due_ms: int) -> None:
        """Hold a copy of a message, which has no record yet."""
        super().__init__(
            message.envelope, message.header, message.body, message.charge, message.facts, message.timestamp_ms
        )
        self.due_ms = due_ms


def delay_of(value: Any) -> int | None:
    """Return the delay that an x-delay header asks for, None when there is none.

    Units: milliseconds.
    Source: the plugin, get_delay/1: text is read as a number, a fraction is cut off; more than 32 bits are not delay.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | float | Decimal):
        return None
    try:
        delay_ms = int(value)
    except (ValueError, OverflowError):
        return None
    return delay_ms if 0 < delay_ms <= DELAY_MAX_MS else None


def due_ms_of(message: Message | None) -> int:
    """Return when a delayed message is due, 0 for one that is gone."""
    if message is None:
        return 0
    if isinstance(message, HeldMessage):
        return message.due_ms
    return message.timestamp_ms + (delay_of(message.facts.delay) or 0)
