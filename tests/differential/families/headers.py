"""Headers exchanges: x-match against presence, values and types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.steps import Conversation, bind, call, confirm, exchange, publish, queue
from tests.differential.wire import Typed

__all__ = ["conversations"]

_BINDINGS: dict[str, dict[str, Any]] = {
    "all": {"x-match": "all", "a": 1, "b": "two"},
    "any": {"x-match": "any", "a": 1, "b": "two"},
    "all-by-default": {"a": 1, "b": "two"},
    "all-with-x": {"x-match": "all-with-x", "x-a": 1, "b": "two"},
    "any-with-x": {"x-match": "any-with-x", "x-a": 1, "b": "two"},
    "all-ignores-x": {"x-match": "all", "x-a": 1, "b": "two"},
    "any-ignores-x": {"x-match": "any", "x-a": 1, "b": "two"},
    "nothing-all": {"x-match": "all"},
    "nothing-any": {"x-match": "any"},
    "void-is-presence": {"x-match": "all", "a": None},
    "text": {"x-match": "all", "a": "1"},
    "double": {"x-match": "all", "a": 1.0},
    "long": {"x-match": "all", "a": Typed("l", 1)},
    "bool": {"x-match": "all", "a": True},
    "list": {"x-match": "all", "a": [1, 2]},
    "table": {"x-match": "any", "a": {"b": 1}},
}
_HEADERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "empty": {},
    "a": {"a": 1},
    "a and b": {"a": 1, "b": "two"},
    "a, b and c": {"a": 1, "b": "two", "c": 3},
    "b": {"b": "two"},
    "other b": {"a": 1, "b": "three"},
    "x": {"x-a": 1},
    "x and b": {"x-a": 1, "b": "two"},
    "a is text": {"a": "1"},
    "a is octet": {"a": Typed("b", 1)},
    "a is long": {"a": Typed("l", 1)},
    "a is double": {"a": 1.0},
    "a is true": {"a": True},
    "a is void": {"a": None},
    "a is list": {"a": [1, 2]},
    "a is table": {"a": {"b": 1}},
}
_WRONG: dict[str, Any] = {"text": "some", "empty": "", "number": 5, "bool": True, "void": None, "case": "ALL"}


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    made = (queue("A1", "~q"), exchange("A1", "~x", "headers"), confirm("A1"))
    for name, arguments in _BINDINGS.items():
        tries = [
            publish("A1", "~x", "", what, mandatory=True, **({} if headers is None else {"headers": headers}))
            for what, headers in _HEADERS.items()
        ]
        yield Conversation(f"headers/{name}", (*made, bind("A1", "~q", "~x", "", **arguments), *tries))
    for what, value in _WRONG.items():
        yield Conversation(f"headers/x-match-wrong-{what}", (*made, bind("A1", "~q", "~x", "", **{"x-match": value})))
    yield Conversation(
        "headers/key-tells-apart",
        (
            *made,
            bind("A1", "~q", "~x", "one", **{"x-match": "all", "a": 1}),
            bind("A1", "~q", "~x", "two", **{"x-match": "all", "a": 1}),
            publish("A1", "~x", "three", "once", headers={"a": 1}),
            _unbind("one"),
            publish("A1", "~x", "", "still", headers={"a": 1}, mandatory=True),
            _unbind("two"),
            publish("A1", "~x", "", "lost", headers={"a": 1}, mandatory=True),
        ),
    )


def _unbind(key: str) -> Any:
    arguments = {"x-match": "all", "a": 1}
    return call("A1", "queue.unbind", queue="~q", exchange="~x", routing_key=key, arguments=arguments)
