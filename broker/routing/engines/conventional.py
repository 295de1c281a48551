"""Conventional topic matching: one pattern after the other against a routing key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from broker.routing.dialect import AMQP, TopicDialect
from broker.routing.pattern import HASH, STAR, Pattern

T = TypeVar("T")


def words_match(pattern: Sequence[str], key: Sequence[str], star: str = STAR) -> bool:
    """Return whether the words of a pattern match those of a routing key.

    The words between two `#` take the leftmost place where they fit, which leaves the most for what follows; so only
    the last `#` is ever returned to.

    Cost: |key| x |pattern| at worst; without a `#` it ends at the first word that differs.
    """
    place, wanted_place = 0, 0
    retry_place, behind_hash = 0, -1
    while place < len(key):
        if wanted_place < len(pattern):
            wanted = pattern[wanted_place]
            if wanted == HASH:
                wanted_place += 1
                retry_place, behind_hash = place, wanted_place
                continue
            if wanted == star or wanted == key[place]:
                wanted_place += 1
                place += 1
                continue
        if behind_hash < 0:
            return False
        retry_place += 1
        place, wanted_place = retry_place, behind_hash
    while wanted_place < len(pattern) and pattern[wanted_place] == HASH:
        wanted_place += 1
    return wanted_place == len(pattern)


class Conventional(Generic[T]):
    """Maps binding keys to targets in a hash map, each tested against the message.

    A subscription joins the list of those with the same binding key (the target); the lists are in a hash map whose
    keys are the binding keys. For a message each key of the map is tested by string matching, and both strings are
    split into words again for each of these tests. After the last key all subscriptions are found. The hash map finds
    no message's subscriptions itself, for a wildcard may stand for any word.

    Cost: a match costs all binding keys, whatever the message; add and remove cost one look-up.
    `visited` counts binding keys.

    Source: "Fast Topic Matching Algorithm Implementation for WSO2 Message Broker", 2015, which writes routing key for
    the binding key and routing pattern for the message's key; the repeated splitting: "Very fast and scalable topic
    routing", part 1, RabbitMQ, 2010.
    """

    def __init__(self, dialect: TopicDialect = AMQP) -> None:
        self.visited = 0
        self._dialect = dialect
        self._subscriptions: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._subscriptions)

    def counts(self) -> Mapping[str, int]:
        """Return the number of binding keys."""
        return {"keys": len(self._subscriptions)}

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern, or return the one that it has already."""
        known = self._subscriptions.get(pattern.text)
        if known is None:
            self._subscriptions[pattern.text] = target
        return known

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""
        return self._subscriptions.get(pattern.text)

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is not there."""
        target = self._subscriptions.pop(pattern.text)
        if not self._subscriptions:
            self._subscriptions.clear()  # a dict keeps its size when keys are deleted
        return target

    def match(self, key: str) -> list[T]:
        """Return the targets of the patterns that match. Cost: all patterns."""
        dialect = self._dialect
        found: list[T] = []
        for text, target in self._subscriptions.items():
            if words_match(dialect.words(text), dialect.words(key), dialect.star):
                found.append(target)
        self.visited += len(self._subscriptions)
        return found
