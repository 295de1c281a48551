"""Messages and queues that expire, and queues that are full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.steps import (
    Conversation,
    Step,
    ack,
    bind,
    call,
    cancel,
    confirm,
    consume,
    declared,
    exchange,
    get,
    nack,
    pause,
    publish,
    queue,
    until,
)

__all__ = ["conversations"]

LATER_MS = 60_000
SOON_MS = 60


def _expiry(name: str, *steps: Step) -> Conversation:
    return Conversation(f"expiry/{name}", steps)


def _several(*bodies: str, **properties: Any) -> list[Step]:
    return [publish("A1", "", "~q", body, **properties) for body in bodies]


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield from _messages()
    yield from _queues()
    yield from _lengths()
    yield from _overflows()


def _messages() -> Iterator[Conversation]:
    soon = {"expiration": str(SOON_MS)}
    yield _expiry("message", queue("A1", "~q"), publish("A1", "", "~q", **soon), until("~q", 0), get("A1", "~q"))
    yield _expiry("queue", queue("A1", "~q", x_message_ttl=SOON_MS), publish("A1", "", "~q"), until("~q", 0))
    yield _expiry(
        "lesser-of-both",
        queue("A1", "~q", x_message_ttl=LATER_MS),
        queue("A1", "~p", x_message_ttl=SOON_MS),
        publish("A1", "", "~q", "soon", **soon),
        publish("A1", "", "~p", "soon", expiration=str(LATER_MS)),
        until("~q", 0),
        until("~p", 0),
    )
    yield _expiry(
        "longer-stays", queue("A1", "~q", x_message_ttl=LATER_MS), publish("A1", "", "~q", expiration="70000")
    )
    yield _expiry(
        "only-at-the-head",
        queue("A1", "~q"),
        publish("A1", "", "~q", "stays"),
        publish("A1", "", "~q", "expires", **soon),
        pause(300),
        declared("~q"),
        get("A1", "~q", no_ack=True),
        until("~q", 0),
    )
    yield _expiry("zero-without-consumer", queue("A1", "~q", x_message_ttl=0), *_several("lost"), declared("~q"))
    yield _expiry(
        "zero-with-consumer",
        queue("A1", "~q", x_message_ttl=0),
        consume("A2", "~q"),
        *_several("one", "two"),
        nack("A2", "one"),
    )
    yield _expiry(
        "zero-with-busy-consumer",
        queue("A1", "~q", x_message_ttl=0),
        call("A2", "basic.qos", prefetch_count=1),
        consume("A2", "~q"),
        *_several("one", "lost"),
        ack("A2", "one"),
        publish("A1", "", "~q", "three"),
    )
    yield _expiry(
        "zero-mandatory", queue("A1", "~q"), confirm("A1"), publish("A1", "", "~q", mandatory=True, expiration="0")
    )
    yield _expiry(
        "unacked-does-not-expire",
        queue("A1", "~q", x_message_ttl=SOON_MS),
        consume("A1", "~q"),
        publish("A1", "", "~q"),
        pause(250),
        declared("~q"),
        cancel("A1"),
        nack("A1", "m"),
        until("~q", 0),
    )
    yield _expiry(
        "while-consumer-waits",
        queue("A1", "~q"),
        publish("A1", "", "~q", "expires", **soon),
        publish("A1", "", "~q", "stays"),
        until("~q", 1),
        consume("A1", "~q"),
    )


def _queues() -> Iterator[Conversation]:
    yield _expiry("unused", queue("A1", "~q", x_expires=800), publish("A1", "", "~q"), pause(1500), declared("~q"))
    yield _expiry("used", queue("A1", "~q", x_expires=800), consume("A1", "~q"), pause(1500), declared("~q"))
    yield _expiry(
        "after-cancel",
        queue("A1", "~q", x_expires=800),
        consume("A1", "~q"),
        pause(1200),
        cancel("A1"),
        pause(1500),
        declared("~q"),
    )
    yield _expiry(
        "no-dead-letters-of-an-expired-queue",
        queue("A1", "~dead"),
        queue("A1", "~q", x_expires=800, x_dead_letter_exchange="", x_dead_letter_routing_key="~dead"),
        publish("A1", "", "~q"),
        pause(1500),
        declared("~q", "~dead"),
    )


def _lengths() -> Iterator[Conversation]:
    yield _expiry("length", queue("A1", "~q", x_max_length=2), *_several("one", "two", "three", "four"))
    yield _expiry("length-zero", queue("A1", "~q", x_max_length=0), confirm("A1"), *_several("one"), declared("~q"))
    yield _expiry(
        "length-zero-with-consumer", queue("A1", "~q", x_max_length=0), consume("A2", "~q"), *_several("one", "two")
    )
    yield _expiry(
        "length-counts-ready-only",
        queue("A1", "~q", x_max_length=1),
        *_several("one"),
        get("A1", "~q"),
        *_several("two", "three"),
        nack("A1", "one"),
        declared("~q"),
    )
    yield _expiry("bytes", queue("A1", "~q", x_max_length_bytes=10), *_several("aaaa", "bbbb", "cccc"), declared("~q"))
    yield _expiry(
        "bytes-count-the-body-only", queue("A1", "~q", x_max_length_bytes=4), *_several("aaaa", message_id="x")
    )
    yield _expiry("bytes-smaller-than-message", queue("A1", "~q", x_max_length_bytes=3), *_several("aa", "bbbb", "c"))
    yield _expiry(
        "length-and-bytes",
        queue("A1", "~q", x_max_length=3, x_max_length_bytes=5),
        *_several("aa", "bb", "cc", "d", "e"),
    )
    yield _expiry(
        "length-of-priorities",
        queue("A1", "~q", x_max_length=2, x_max_priority=3),
        publish("A1", "", "~q", "high", priority=3),
        publish("A1", "", "~q", "low", priority=0),
        publish("A1", "", "~q", "middle", priority=1),
        publish("A1", "", "~q", "higher", priority=3),
        publish("A1", "", "~q", "dropped at once", priority=0),
    )


def _overflows() -> Iterator[Conversation]:
    dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "~dead"}
    for mode in ("drop-head", "reject-publish", "reject-publish-dlx"):
        yield _expiry(
            f"overflow-{mode}",
            queue("A1", "~dead"),
            queue("A1", "~q", x_max_length=1, x_overflow=mode, **dead),
            confirm("A1"),
            *_several("one", "two", "three"),
            get("A2", "~q", no_ack=True),
            *_several("four"),
        )
        yield _expiry(
            f"overflow-{mode}-unconfirmed",
            queue("A1", "~q", x_max_length=1, x_overflow=mode),
            *_several("one", "two"),
            publish("A1", "", "~q", "three", mandatory=True),
        )
        yield _expiry(
            f"overflow-{mode}-of-one-of-two",
            queue("A1", "~q", x_max_length=1, x_overflow=mode),
            queue("A1", "~p"),
            exchange("A1", "~x", "fanout"),
            bind("A1", "~q", "~x"),
            bind("A1", "~p", "~x"),
            confirm("A1"),
            publish("A1", "~x", "", "one"),
            publish("A1", "~x", "", "two"),
        )
    yield _expiry(
        "overflow-bytes-reject",
        queue("A1", "~q", x_max_length_bytes=4, x_overflow="reject-publish"),
        confirm("A1"),
        *_several("aaa", "bbb", "c", "d"),
    )
    yield _expiry(
        "overflow-reject-delivered-at-once",
        queue("A1", "~q", x_max_length=0, x_overflow="reject-publish"),
        consume("A2", "~q"),
        confirm("A1"),
        *_several("one"),
    )
    yield _expiry(
        "overflow-reject-unacked",
        queue("A1", "~q", x_max_length=1, x_overflow="reject-publish"),
        confirm("A1"),
        *_several("one"),
        get("A2", "~q"),
        *_several("two", "three"),
        nack("A2", "one"),
        *_several("four"),
    )
