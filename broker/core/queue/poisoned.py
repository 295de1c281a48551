"""The queue to which the poisoned messages of another queue go: those that exceed its delivery limit.

It is made with the first one, as a durable quorum queue, so that it keeps transient messages too. No limit holds for
deliveries from it.
"""

from __future__ import annotations

from typing import Any, Final

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.queue.rules import QUORUM

__all__ = ["POISONED_ARGUMENTS", "can_keep_poisoned", "is_poisoned_name", "poisoned_name"]

SUFFIX: Final = ".poisoned"
POISONED_ARGUMENTS: Final[dict[str, Any]] = {"x-queue-type": QUORUM, "x-delivery-limit": -1}


def poisoned_name(queue: str) -> str:
    """Return the name of the queue for the poisoned messages of a queue."""
    return queue + SUFFIX


def can_keep_poisoned(queue: str) -> bool:
    """Return whether the name of a queue is short enough for another one with the suffix."""
    return len(queue.encode()) + len(SUFFIX) <= SHORT_STRING_MAX_BYTES


def is_poisoned_name(queue: str) -> bool:
    """Return whether a queue is one for poisoned messages."""
    return queue.endswith(SUFFIX)
