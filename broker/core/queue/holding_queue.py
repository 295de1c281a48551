"""The queue in which the delayed messages of one exchange wait."""

from __future__ import annotations

from typing import Final

from broker.core.message.message import Message
from broker.core.queue.queue import Queue

__all__ = ["HOLDING_PREFIX", "HoldingQueue", "holding_name", "is_holding_name"]

HOLDING_PREFIX: Final = "amq.delayed."


def holding_name(exchange: str) -> str:
    """Return the name of the holding queue of an exchange."""
    return HOLDING_PREFIX + exchange


def is_holding_name(name: str) -> bool:
    """Return whether a queue of that name holds delayed messages; no client can declare such a name."""
    return name.startswith(HOLDING_PREFIX)


class HoldingQueue(Queue):
    """The queue in which the messages of one exchange wait. Their time to live begins when they leave it.

    The queues that a message goes to are known only when it is due. One of them may persist everything that it accepts,
    so the holding queue of a durable exchange does too.
    """

    __slots__ = ()

    kept = True
    is_holding = True
    persists_all = True
    holds = "delayed messages"

    def expires_ms(self, message: Message) -> None:
        """Return None: nothing expires here."""
