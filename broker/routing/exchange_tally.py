"""Counters of what was published to one exchange."""

from __future__ import annotations


class ExchangeTally:
    """Counts the messages that clients published to one exchange: how many came in, and to how many queues they went.

    Invariant: both numbers only grow.
    """

    __slots__ = ("publish_in", "publish_out")

    def __init__(self) -> None:
        self.publish_in = 0
        self.publish_out = 0

    def count(self, count: int, queues: int) -> None:
        """Count messages, each of which went to this many queues."""
        self.publish_in += count
        self.publish_out += count * queues
