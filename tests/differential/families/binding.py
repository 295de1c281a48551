"""Bindings of queues: repeated, missing, with arguments, and their routing."""

from __future__ import annotations

from collections.abc import Iterator

from tests.differential.steps import Conversation, Step, bind, call, confirm, exchange, get, publish, queue

__all__ = ["conversations"]

_TOPICS = {
    "a.b": ("a.b", "a.c", "a", "a.b.c", ""),
    "*": ("a", "", "a.b", "."),
    "#": ("a", "", "a.b", ".", "a..b"),
    "*.b": ("a.b", ".b", "b", "a.a.b"),
    "a.*": ("a.b", "a.", "a", "a.b.c"),
    "a.#": ("a", "a.b", "a.b.c", "ab", "a."),
    "#.b": ("b", "a.b", "a.c.b", ".b", "b.a"),
    "a.#.b": ("a.b", "a.x.b", "a.x.y.b", "a", "b", "a.b.b"),
    "#.#": ("", "a", "a.b"),
    "*.#": ("", "a", "a.b"),
    "#.*": ("", "a", "a.b.c"),
    "#.a.#": ("a", "x.a", "a.x", "x.a.x", "x"),
    "a*": ("a*", "ab", "a"),
    "a#.b": ("a#.b", "a.b"),
    "a..b": ("a..b", "a.b", "a.x.b"),
    "*.*": (".", "a.b", "a", "a.b.c"),
    "": ("", "a", "."),
}


def _binding(name: str, *steps: Step) -> Conversation:
    return Conversation(f"binding/{name}", steps)


def _unbind(at: str, queue_name: str, exchange_name: str, key: str = "", **arguments: object) -> Step:
    fields = {"queue": queue_name, "exchange": exchange_name, "routing_key": key}
    return call(at, "queue.unbind", **fields, **({"arguments": arguments} if arguments else {}))


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    made = (queue("A1", "~q"), exchange("A1", "~x"), confirm("A1"))
    yield _binding("missing-queue", exchange("A1", "~x"), bind("A1", "~none", "~x", "k"))
    yield _binding("missing-exchange", queue("A1", "~q"), bind("A1", "~q", "~none", "k"))
    yield _binding("both-missing", bind("A1", "~none", "~neither", "k"))
    yield _binding("unbind-missing-queue", exchange("A1", "~x"), _unbind("A1", "~none", "~x", "k"))
    yield _binding("unbind-missing-exchange", queue("A1", "~q"), _unbind("A1", "~q", "~none", "k"))
    yield _binding("unbind-missing", *made, _unbind("A1", "~q", "~x", "k"))
    yield _binding(
        "twice-is-once",
        *made,
        bind("A1", "~q", "~x", "k"),
        bind("A1", "~q", "~x", "k"),
        publish("A1", "~x", "k", "once"),
        _unbind("A1", "~q", "~x", "k"),
        publish("A1", "~x", "k", "lost", mandatory=True),
    )
    yield _binding(
        "arguments-tell-apart",
        *made,
        bind("A1", "~q", "~x", "k", a=1),
        bind("A1", "~q", "~x", "k", a=2),
        publish("A1", "~x", "k", "once"),
        _unbind("A1", "~q", "~x", "k", a=1),
        publish("A1", "~x", "k", "still"),
        _unbind("A1", "~q", "~x", "k"),
        publish("A1", "~x", "k", "still"),
        _unbind("A1", "~q", "~x", "k", a=2),
        publish("A1", "~x", "k", "lost", mandatory=True),
    )
    yield _binding("nowait", *made, call("A1", "queue.bind", queue="~q", exchange="~x", routing_key="k", nowait=True))
    yield _binding("case-and-spaces", *made, bind("A1", "~q", "~x", "K "), *_tried("~x", ("k ", "K", "K ")))
    yield _binding(
        "fanout-ignores-keys",
        queue("A1", "~q"),
        exchange("A1", "~x", "fanout"),
        confirm("A1"),
        bind("A1", "~q", "~x", "k"),
        *_tried("~x", ("k", "other", "")),
    )
    yield _binding("default-exchange", *made, *_tried("", ("~q", "~Q", "~none", "")))
    for pattern, keys in _TOPICS.items():
        yield _binding(
            f"topic-{pattern or 'empty'}",
            queue("A1", "~q"),
            exchange("A1", "~x", "topic"),
            confirm("A1"),
            bind("A1", "~q", "~x", pattern),
            *_tried("~x", keys),
            _unbind("A1", "~q", "~x", pattern),
            *_tried("~x", keys[:1]),
        )
    yield _binding(
        "topic-overlap-is-one-copy",
        queue("A1", "~q"),
        exchange("A1", "~x", "topic"),
        confirm("A1"),
        *(bind("A1", "~q", "~x", key) for key in ("a.#", "#.b", "a.b", "*.*")),
        publish("A1", "~x", "a.b", "once"),
        get("A1", "~q", no_ack=True),
        get("A1", "~q", no_ack=True),
    )


def _tried(exchange_name: str, keys: tuple[str, ...]) -> list[Step]:
    return [publish("A1", exchange_name, key, f"to {key}", mandatory=True) for key in keys]
