"""Dead letters: every reason, keys, x-death headers, cycles, copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.steps import (
    Conversation,
    Step,
    bind,
    call,
    confirm,
    consume,
    declared,
    exchange,
    get,
    nack,
    pause,
    publish,
    queue,
    reject,
    until,
)

__all__ = ["conversations"]


def _dead(name: str, *steps: Step) -> Conversation:
    return Conversation(f"dead_letter/{name}", steps)


def _buried(**fields: Any) -> list[Step]:
    """Return the steps that declare a queue and the target of its dead letters."""
    return [
        queue("A1", "~dead"),
        queue("A1", "~q", x_dead_letter_exchange="", x_dead_letter_routing_key="~dead", **fields),
    ]


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield from _reasons()
    yield from _keys()
    yield from _headers()
    yield from _again()
    yield _dead(
        "exchange-missing",
        queue("A1", "~q", x_dead_letter_exchange="~none"),
        publish("A1", "", "~q"),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        declared("~q"),
    )
    yield _dead(
        "exchange-made-later",
        queue("A1", "~q", x_dead_letter_exchange="~x"),
        queue("A1", "~dead"),
        exchange("A1", "~x", "fanout"),
        bind("A1", "~dead", "~x"),
        publish("A1", "", "~q"),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        get("A1", "~dead"),
    )
    yield _dead(
        "through-internal-exchange-to-two",
        queue("A1", "~q", x_dead_letter_exchange="~x", x_dead_letter_routing_key="a.b"),
        queue("A1", "~one"),
        queue("A1", "~two"),
        exchange("A1", "~x", "topic", internal=True),
        bind("A1", "~one", "~x", "a.*"),
        bind("A1", "~two", "~x", "#"),
        publish("A1", "", "~q", headers={"CC": ["~q"]}),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        get("A1", "~one"),
    )
    yield _dead("purged-is-not-dead", *_buried(), publish("A1", "", "~q"), call("A1", "queue.purge", queue="~q"))
    yield _dead("deleted-is-not-dead", *_buried(), publish("A1", "", "~q"), call("A1", "queue.delete", queue="~q"))


def _reasons() -> Iterator[Conversation]:
    yield _dead(
        "rejected",
        *_buried(),
        publish("A1", "", "~q"),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        get("A1", "~dead"),
    )
    yield _dead(
        "nacked-several",
        *_buried(),
        *(publish("A1", "", "~q", body) for body in ("one", "two", "three")),
        consume("A1", "~q"),
        nack("A1", "two", requeue=False, multiple=True),
        nack("A1", "three", requeue=True),
    )
    yield _dead("expired-in-queue", *_buried(x_message_ttl=50), publish("A1", "", "~q"), until("~dead", 1))
    yield _dead("expired-message", *_buried(), publish("A1", "", "~q", expiration="50"), until("~dead", 1))
    yield _dead("expired-at-once", *_buried(x_message_ttl=0), confirm("A1"), publish("A1", "", "~q"), until("~dead", 1))
    yield _dead("maxlen", *_buried(x_max_length=1), publish("A1", "", "~q", "one"), publish("A1", "", "~q", "two"))
    yield _dead(
        "maxlen-bytes", *_buried(x_max_length_bytes=3), publish("A1", "", "~q", "one"), publish("A1", "", "~q", "two")
    )
    yield _dead(
        "maxlen-rejected",
        *_buried(x_max_length=1, x_overflow="reject-publish-dlx"),
        confirm("A1"),
        publish("A1", "", "~q", "one"),
        publish("A1", "", "~q", "two"),
    )
    yield _dead(
        "to-a-consumer",
        *_buried(),
        consume("B1", "~dead", no_ack=True),
        publish("A1", "", "~q"),
        consume("A1", "~q"),
        reject("A1", "m", requeue=False),
    )


def _keys() -> Iterator[Conversation]:
    yield _dead(
        "own-key",
        queue("A1", "~q", x_dead_letter_exchange="~x"),
        queue("A1", "~dead"),
        exchange("A1", "~x"),
        bind("A1", "~dead", "~x", "~q"),
        publish("A1", "", "~q"),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        get("A1", "~dead"),
    )
    for name, headers in {
        "CC": {"CC": ["~q", "extra"]},
        "BCC": {"BCC": ["~q", "secret"]},
        "both": {"CC": ["a"], "BCC": ["~q"]},
    }.items():
        for keyed in (True, False):
            yield _dead(
                f"copies-{name}-{'keyed' if keyed else 'unkeyed'}",
                queue(
                    "A1", "~q", x_dead_letter_exchange="~x", **({"x_dead_letter_routing_key": "dlk"} if keyed else {})
                ),
                queue("A1", "~dead"),
                exchange("A1", "~x", "fanout"),
                exchange("A1", "~from", "topic"),
                bind("A1", "~dead", "~x"),
                bind("A1", "~q", "~from", "#"),
                publish("A1", "~from", "first", headers=headers),
                get("A1", "~q"),
                reject("A1", "m", requeue=False),
                get("A1", "~dead"),
            )


def _headers() -> Iterator[Conversation]:
    yield _dead(
        "headers-stay",
        *_buried(),
        publish(
            "A1",
            "",
            "~q",
            headers={"mine": 1, "z": "last", "a": "first"},
            expiration="60000",
            priority=3,
            message_id="id",
            delivery_mode=2,
            timestamp=1_000_000_000,
        ),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        get("A1", "~dead"),
    )
    for name, value in {"text": "mine", "empty": [], "texts": ["mine"], "table": {"a": 1}}.items():
        yield _dead(
            f"x-death-from-client-{name}",
            *_buried(),
            publish("A1", "", "~q", headers={"x-death": value}),
            get("A1", "~q"),
            reject("A1", "m", requeue=False),
            get("A1", "~dead"),
        )
    claimed = {"queue": "~q", "reason": "rejected", "count": 5, "exchange": "", "routing-keys": ["~q"]}
    yield _dead(
        "x-death-claimed",
        *_buried(),
        publish("A1", "", "~q", headers={"x-death": [claimed], "x-first-death-queue": "mine"}),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        get("A1", "~dead"),
    )


def _again() -> Iterator[Conversation]:
    yield _dead(
        "twice-counts",
        queue("A1", "~dead", x_dead_letter_exchange="", x_dead_letter_routing_key="~q"),
        queue("A1", "~q", x_dead_letter_exchange="", x_dead_letter_routing_key="~dead"),
        publish("A1", "", "~q"),
        *_thrown_between("~q", "~dead", 3),
    )
    yield _dead(
        "cycle-of-expiry-ends",
        queue("A1", "~p", x_message_ttl=30, x_dead_letter_exchange="", x_dead_letter_routing_key="~q"),
        queue("A1", "~q", x_message_ttl=30, x_dead_letter_exchange="", x_dead_letter_routing_key="~p"),
        publish("A1", "", "~q"),
        pause(500),
        declared("~q", "~p"),
    )
    yield _dead(
        "cycle-to-itself-ends",
        queue("A1", "~q", x_message_ttl=30, x_dead_letter_exchange="", x_dead_letter_routing_key="~q"),
        publish("A1", "", "~q"),
        pause(400),
        declared("~q"),
    )
    yield _dead(
        "cycle-with-rejection-goes-on",
        queue("A1", "~retry", x_message_ttl=50, x_dead_letter_exchange="", x_dead_letter_routing_key="~q"),
        queue("A1", "~q", x_dead_letter_exchange="", x_dead_letter_routing_key="~retry"),
        publish("A1", "", "~q", headers={"kept": True}),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        until("~q", 1),
        get("A1", "~q"),
        reject("A1", "m", requeue=False),
        until("~q", 1),
        get("A1", "~q"),
    )
    yield _dead(
        "maxlen-cycle",
        queue("A1", "~q", x_max_length=1, x_dead_letter_exchange="", x_dead_letter_routing_key="~q"),
        publish("A1", "", "~q", "one"),
        publish("A1", "", "~q", "two"),
        pause(200),
        declared("~q"),
    )
    yield _dead(
        "expiration-removed-then-set-again",
        queue("A1", "~end"),
        queue("A1", "~b", x_message_ttl=40, x_dead_letter_exchange="", x_dead_letter_routing_key="~end"),
        queue("A1", "~a", x_dead_letter_exchange="", x_dead_letter_routing_key="~b"),
        publish("A1", "", "~a", expiration="40"),
        until("~end", 1),
        get("A1", "~end"),
    )


def _thrown_between(one: str, other: str, times: int) -> list[Step]:
    steps = []
    for _ in range(times):
        for name in (one, other):
            steps += [get("A1", name), reject("A1", "m", requeue=False)]
    return steps
