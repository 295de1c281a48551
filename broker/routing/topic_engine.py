"""The interface of every algorithm that matches topic patterns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from broker.routing.pattern import Pattern

T = TypeVar("T")


class TopicEngine(Protocol[T]):
    """Maps distinct canonical patterns, literal ones among them, to one target each.

    `visited` counts the work of matching, each engine in its own unit: patterns, rows, nodes or states.
    """

    visited: int

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Store the target of one pattern and return None; if the pattern has a target, keep it and return it."""

    def find(self, pattern: Pattern) -> T | None:
        """Return the target of one pattern, or None if it is not there."""

    def remove(self, pattern: Pattern) -> T:
        """Forget one pattern and return its target. Raises: KeyError if it is not there."""

    def match(self, key: str) -> list[T]:
        """Return the targets of all patterns that match a routing key; the same target may come more than once."""

    def __len__(self) -> int:
        """Return the number of patterns."""

    def counts(self) -> Mapping[str, int]:
        """Return the sizes of the structures within, by name; without a pattern all of them are 0."""
