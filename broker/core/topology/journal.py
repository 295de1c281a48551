"""The journal of a vhost's topology: it decides each change of an exchange, a queue or a binding before it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.core.topology.changes import Change

__all__ = ["Journal", "LocalJournal"]


class Journal(Protocol):
    """Decides changes."""

    def decide(self, change: Change, *, durable: bool = True, owner: object | None = None) -> None:
        """Decide a change, which the caller makes in memory at once when this returns.

        Shapes: `owner` is the connection to which an exclusive queue belongs, for a change of that queue.
        Raises: Postponed while others have to decide it; then the caller has changed nothing, and runs again.
        """

    def retire(self, change: Change, *, durable: bool) -> bool:
        """Decide to delete a queue that nobody uses any more, for which no method waits.

        Return whether the caller deletes it at once. In a cluster all nodes delete it later, unless it is used
        elsewhere.
        """


class LocalJournal:
    """The journal of a standalone broker: it records durable changes, and nobody else has to agree."""

    __slots__ = ("_record",)

    def __init__(self, record: Callable[[Change], None]) -> None:
        self._record = record

    def decide(self, change: Change, *, durable: bool = True, owner: object | None = None) -> None:
        """Record a durable change."""
        if durable:
            self._record(change)

    def retire(self, change: Change, *, durable: bool) -> bool:
        """Record a durable change, and let the queue go at once."""
        self.decide(change, durable=durable)
        return True
