"""Conditions on messages, as operators write them: `key=order.#`, `exchange=logs`, `header:region=eu`, `body~error`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from broker.amqp.header_edit import read_headers
from broker.core.message.message import Message
from broker.routing.pattern import parse_pattern, split_words, words_match

Condition = Callable[[Message], bool]
FORMS: Final = "key=PATTERN, exchange=NAME, header:NAME=VALUE or body~TEXT"


def every(texts: Sequence[str]) -> Condition:
    """Return a condition that holds if all of the conditions in the texts hold. Raises: ValueError."""
    conditions = [condition_of(text) for text in texts]
    return lambda message: all(condition(message) for condition in conditions)


def condition_of(text: str) -> Condition:
    """Return the condition that a text describes. Raises: ValueError for any other text."""
    if text.startswith("key="):
        return _key(text.removeprefix("key="))
    if text.startswith("exchange="):
        exchange = text.removeprefix("exchange=")
        return lambda message: message.envelope.exchange == exchange
    if text.startswith("header:"):
        name, equals, value = text.removeprefix("header:").partition("=")
        if name and equals:
            return lambda message: _header_text(message.header, name) == value
    if text.startswith("body~") and text != "body~":
        octets = text.removeprefix("body~").encode("utf-8", "surrogateescape")
        return lambda message: octets in message.body
    raise ValueError(f"'{text}' is not a condition: it is {FORMS}")


def _key(pattern: str) -> Condition:
    """Return the condition that the routing key matches a pattern, as in the binding key of a topic exchange."""
    words = parse_pattern(pattern).words
    return lambda message: words_match(words, split_words(message.envelope.key))


def _header_text(header: bytes, name: str) -> str | None:
    """Return the value of a header as an operator would write it, or None unless it is text, a boolean or a number."""
    value: Any = read_headers(header, name).get(name)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float | Decimal) else None
