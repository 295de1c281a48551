"""The consumers of one queue, and whose turn it is: priorities first, then round robin; or a single active one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.core.consumer import Consumer

__all__ = ["Round"]


class Round:
    """Holds a queue's consumers in the order of their turns.

    Invariant: with a single active consumer, ``active`` is one of them as long as there is one; it stays the one until
        it leaves, even when one of a higher priority comes.
    """

    __slots__ = ("_consumers", "_single_active", "_turn", "active", "present")

    def __init__(self, *, single_active: bool = False) -> None:
        self._consumers: list[Consumer] = []
        self._turn = 0
        self._single_active = single_active
        self.active: Consumer | None = None
        self.present = False  # whether there is one: asked for each message, so an attribute and not a call

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        """Iterates in the order of their turns."""
        return iter(self._consumers)

    @property
    def exclusive(self) -> bool:
        """Whether one consumer keeps the queue to itself."""
        return bool(self._consumers) and self._consumers[0].exclusive

    def add(self, consumer: Consumer) -> None:
        """Adds a consumer at the end: behind the one that was served last."""
        turn = self._turn % len(self._consumers) if self._consumers else 0
        self._consumers = [*self._consumers[turn:], *self._consumers[:turn], consumer]
        self._turn = 0
        self.present = True
        if self._single_active and self.active is None:
            self.active = consumer

    def remove(self, consumer: Consumer) -> None:
        """Removes a consumer; where one is active at a time the next of the highest priority follows it."""
        place = self._consumers.index(consumer)
        del self._consumers[place]
        self.present = bool(self._consumers)
        if place < self._turn:
            self._turn -= 1
        if consumer is self.active:
            self.active = max(self._consumers, key=lambda other: other.priority, default=None)

    def clear(self) -> list[Consumer]:
        """Removes all consumers and returns them."""
        gone, self._consumers = self._consumers, []
        self.active = None
        self.present = False
        return gone

    def able(self) -> bool:
        """Tells whether some consumer can take a message now."""
        return bool(self.next())

    def next(self) -> list[Consumer]:
        """Returns the consumers that share the next messages, the one whose turn it is first.

        They have room and the highest priority of those that do.
        """
        consumers = self._consumers
        if len(consumers) == 1:
            return consumers if consumers[0].room() > 0 else []
        if self.active is not None:
            return [self.active] if self.active.room() > 0 else []
        turn = self._turn % len(consumers) if consumers else 0
        able = [consumer for consumer in consumers[turn:] + consumers[:turn] if consumer.room() > 0]
        if len(able) > 1:
            highest = max(consumer.priority for consumer in able)
            able = [consumer for consumer in able if consumer.priority == highest]
        return able

    def served(self, consumer: Consumer) -> None:
        """Notes who was served last."""
        if consumer in self._consumers:
            self._turn = self._consumers.index(consumer) + 1
