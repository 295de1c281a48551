"""The stream queue of an exchange of the overlay: what other brokers want waits here until all of them have it.

It is the outlet of its exchange, not bound to it: a message is numbered, recorded and confirmed as in any other queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration

__all__ = ["OverlayQueue", "is_overlay_name", "overlay_arguments", "overlay_queue_name"]

STREAM_PREFIX: Final = "amq.overlay."
_FIRST_NUMBER: Final = "x-overlay-first-number"


def overlay_queue_name(exchange: str) -> str:
    """Return the name of the stream queue of an exchange."""
    return STREAM_PREFIX + exchange


def overlay_arguments(first_number: int) -> dict[str, Any]:
    """Return the arguments that describe a stream queue, which keeps them."""
    return {_FIRST_NUMBER: first_number}


def is_overlay_name(name: str) -> bool:
    """Return whether a queue of that name is a stream queue; no client can declare such a name."""
    return name.startswith(STREAM_PREFIX)


def _nobody(_queue: OverlayQueue) -> None:
    """Ignore that a stream has grown."""


class OverlayQueue(Queue):
    """The stream queue of one exchange. No client can use it, no policy holds for it, and nothing expires in it.

    It numbers and records transient messages too, because other brokers rely on numbers that never come back.
    """

    __slots__ = ("_grown",)

    kept = True
    persists_all = True
    is_overlay = True

    def __init__(self, declaration: QueueDeclaration, ports: QueuePorts[Level, Queue]) -> None:
        self._grown: Callable[[OverlayQueue], None] = _nobody
        super().__init__(declaration, ports)

    @property
    def exchange(self) -> str:
        """The name of the exchange whose messages the stream has."""
        return self.name.removeprefix(STREAM_PREFIX)

    @property
    def first_number(self) -> int:
        """The number of its first message: a former stream of the same name had the numbers below."""
        return int(self.arguments.get(_FIRST_NUMBER, 1))

    def attend(self, grown: Callable[[OverlayQueue], None]) -> None:
        """Call `grown` when messages were appended, once until `rest`."""
        self._grown = grown
        self.consumers.attend()

    def rest(self) -> None:
        """Call `grown` again at the next message."""
        self.awake = False

    def expires_ms(self, message: Message) -> None:
        """Return None: nothing expires here."""

    def wake_worker(self) -> None:
        """Wake the reader of the stream in place of the worker, which never delivers from here."""
        self.awake = True
        self._grown(self)
