"""Dialects of topic binding keys: their word separators and wildcards.

A dialect turns keys into words of one alphabet, in which the wildcards are `*` and `#`, so that one index and its
engines serve all dialects.
"""

from __future__ import annotations

from typing import Final, Protocol

from broker.routing.pattern import (
    HASH,
    STAR,
    BindingKeyError,
    Pattern,
    PatternLimits,
    check_limits,
    parse_pattern,
)


class TopicDialect(Protocol):
    """The dialect in which a topic exchange reads binding keys and routing keys."""

    @property
    def name(self) -> str:
        """Return the name by which an exchange selects the dialect."""

    def words(self, key: str) -> list[str]:
        """Return the words of a routing key."""

    def parse(self, key: str, limits: PatternLimits | None = None) -> Pattern:
        """Return a binding key as a pattern.

        Raises: BindingKeyError for a malformed key, and for one that exceeds the limits, if there are any.
        """


class AmqpDialect:
    """RabbitMQ's: dots separate, `*` is one word, `#` zero or more, anywhere.

    Source: AMQP 0-9-1, 3.1.3.3; RabbitMQ.
    """

    name: Final = "amqp"

    def words(self, key: str) -> list[str]:
        """Return the words of a routing key; the empty key has none."""
        return key.split(".") if key else []  # like split_words, without one more call per message

    def parse(self, key: str, limits: PatternLimits | None = None) -> Pattern:
        """Return a binding key as a pattern. Raises: BindingKeyError for one that exceeds the limits."""
        return parse_pattern(key, limits)


class MqttDialect:
    """MQTT's: slashes separate, `+` is one level, `#` is last and matches the level above it too.

    An empty level is a level, and the empty key has one. No filter that begins with a wildcard matches a topic that
    begins with `$`: patterns and keys get a first word that tells whether they begin with `$`. As a level of MQTT holds
    no slash, a slash marks the levels that are wildcards only to the index.

    Source: MQTT 5.0, section 4.7.
    """

    name: Final = "mqtt"

    def words(self, key: str) -> list[str]:
        """Return the words of a topic name; wildcards in it are ordinary characters."""
        words = ["$" if key.startswith("$") else ""]
        words += key.split("/")
        if STAR in words:
            words = [_escape(word) for word in words]
        return words

    def parse(self, key: str, limits: PatternLimits | None = None) -> Pattern:
        """Return a topic filter as a pattern.

        Raises: BindingKeyError for a malformed filter, and for one that exceeds the limits, if there are any.
        """
        levels = key.split("/")
        if not key or "\x00" in key:
            raise BindingKeyError(f"binding key '{key}' is not a topic filter: it is empty or holds a null character")
        for position, level in enumerate(levels):
            if ("+" in level and level != "+") or (HASH in level and level != HASH):
                raise BindingKeyError(
                    f"binding key '{key}' is not a topic filter: a wildcard must be a level of its own"
                )
            if level == HASH and position < len(levels) - 1:
                raise BindingKeyError(f"binding key '{key}' is not a topic filter: '#' must be the last level")
        words = ["$" if key.startswith("$") else "", *(STAR if level == "+" else _escape(level) for level in levels)]
        pattern = Pattern(key, tuple(words), literal=not ("+" in levels or HASH in levels))
        if limits is not None:
            check_limits(key, levels, limits)
        return pattern


def _escape(level: str) -> str:
    return "/*" if level == STAR else level


AMQP: Final = AmqpDialect()
MQTT: Final = MqttDialect()
DIALECTS: Final[dict[str, TopicDialect]] = {dialect.name: dialect for dialect in (AMQP, MQTT)}
