"""Stand-ins for messages and queues in tests of exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.routing.pattern import parse_pattern, split_words
from tests.property.topic_reference import matches

__all__ = ["Fields", "Queue", "pattern_matches"]


@dataclass
class Fields:
    """The headers and properties of one message."""

    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    def property(self, name: str) -> str | None:
        """Return a property."""
        return self.properties.get(name)


@dataclass(eq=False)
class Queue:
    """A destination with a name and arguments."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def pattern_matches(pattern: str, key: str) -> bool:
    """Return whether an AMQP pattern matches a routing key, according to the reference."""
    return matches(parse_pattern(pattern).words, split_words(key))
