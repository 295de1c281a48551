"""Consumers: tags, exclusive ones, rotation, priorities, single active, prefetch, cancel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.steps import (
    Conversation,
    Step,
    ack,
    call,
    cancel,
    close_channel,
    close_connection,
    confirm,
    consume,
    declared,
    get,
    nack,
    publish,
    queue,
    together,
)

__all__ = ["conversations"]


def _consumer(name: str, *steps: Step) -> Conversation:
    return Conversation(f"consumer/{name}", steps)


def _several(*bodies: str, to: str = "~q", **properties: Any) -> list[Step]:
    return [publish("P1", "", to, body, **properties) for body in bodies]


def _qos(at: str, count: int, *, whole: bool = False, size: int = 0) -> Step:
    return call(at, "basic.qos", prefetch_count=count, prefetch_size=size, global_=whole)


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield from _tags()
    yield from _exclusive()
    yield from _turns()
    yield from _single()
    yield from _prefetch()
    yield from _in_order()


def _tags() -> Iterator[Conversation]:
    yield _consumer("missing-queue", consume("A1", "~none"))
    yield _consumer("made-up-tag", queue("A1", "~q"), consume("A1", "~q", ""), *_several("one"))
    yield _consumer("same-tag", queue("A1", "~q"), consume("A1", "~q", "c"), consume("A1", "~q", "c"))
    yield _consumer("same-tag-other-channel", queue("A1", "~q"), consume("A1", "~q", "c"), consume("A2", "~q", "c"))
    yield _consumer("cancel-unknown", cancel("A1", "none"), call("A1", "basic.qos"))
    yield _consumer("cancel-nowait", queue("A1", "~q"), consume("A1", "~q"), _cancel_nowait("A1"), consume("A1", "~q"))
    yield _consumer("consume-nowait", queue("A1", "~q"), consume("A1", "~q", "n", nowait=True), *_several("one"))
    yield _consumer("consume-nowait-no-tag", queue("A1", "~q"), consume("A1", "~q", "", nowait=True), *_several("one"))
    yield _consumer("cancel-ok-unasked", call("A1", "basic.qos"), call("A1", "basic.cancel-ok", consumer_tag="c"))
    yield _consumer("no-local", queue("A1", "~q"), consume("A1", "~q", no_local=True), publish("A1", "", "~q", "mine"))
    yield _consumer(
        "no-ack",
        queue("A1", "~q"),
        *_several("one", "two"),
        consume("A1", "~q", no_ack=True),
        *_several("three"),
        declared("~q"),
        call("A1", "basic.ack", delivery_tag=1),
    )
    yield _consumer(
        "cancel-keeps-unacked",
        queue("A1", "~q"),
        *_several("one"),
        consume("A1", "~q"),
        cancel("A1"),
        *_several("two"),
        declared("~q"),
        ack("A1", "one"),
        declared("~q"),
    )
    for name, value in {"text": "5", "double": 1.5, "bool": True, "negative": -5, "void": None}.items():
        yield _consumer(f"argument-priority-{name}", queue("A1", "~q"), consume("A1", "~q", x_priority=value))
    yield _consumer("argument-unknown", queue("A1", "~q"), consume("A1", "~q", x_unknown=1), *_several("one"))
    yield _consumer("argument-stream-offset", queue("A1", "~q"), consume("A1", "~q", x_stream_offset="first"))


def _cancel_nowait(at: str) -> Step:
    return call(at, "basic.cancel", consumer_tag="c", nowait=True)


def _exclusive() -> Iterator[Conversation]:
    yield _consumer(
        "exclusive-first",
        queue("A1", "~q"),
        consume("A1", "~q", "one", exclusive=True),
        consume("B1", "~q", "two"),
        consume("A2", "~q", "three", exclusive=True),
        get("B1", "~q"),
        cancel("A1", "one"),
        consume("B1", "~q", "two"),
    )
    yield _consumer(
        "exclusive-second", queue("A1", "~q"), consume("A1", "~q", "one"), consume("B1", "~q", exclusive=True)
    )
    yield _consumer(
        "exclusive-gone-with-connection",
        queue("B1", "~q"),
        consume("A1", "~q", exclusive=True),
        close_connection("A"),
        consume("B1", "~q", exclusive=True),
        *_several("one"),
    )


def _turns() -> Iterator[Conversation]:
    numbers = ("1", "2", "3", "4", "5", "6")
    two = (queue("A1", "~q"), consume("A1", "~q", "one"), consume("B1", "~q", "two"))
    yield _consumer("turns", *two, *_several(*numbers))
    yield _consumer("turns-of-three", *two, consume("B1", "~q", "three"), *_several(*numbers))
    yield _consumer(
        "turns-skip-the-busy",
        queue("A1", "~q"),
        _qos("A1", 1),
        consume("A1", "~q", "one"),
        _qos("B1", 2),
        consume("B1", "~q", "two"),
        *_several(*numbers),
        ack("A1", "1"),
        ack("B1", "2"),
    )
    yield _consumer(
        "backlog-goes-to-the-first",
        queue("A1", "~q"),
        *_several(*numbers),
        _qos("A1", 2),
        consume("A1", "~q", "one"),
        consume("B1", "~q", "two"),
    )
    yield _consumer(
        "priorities",
        queue("A1", "~q"),
        _qos("A1", 1),
        consume("A1", "~q", "low", x_priority=-1),
        consume("A1", "~q", "usual"),
        consume("B1", "~q", "high", x_priority=10),
        *_several("1", "2"),
        cancel("B1", "high"),
        *_several("3", "4", "5"),
        ack("A1", "3"),
        ack("A1", "4"),
    )
    yield _consumer(
        "priorities-busy-gives-way",
        queue("A1", "~q"),
        _qos("B1", 1),
        consume("A1", "~q", "low", x_priority=1),
        consume("B1", "~q", "high", x_priority=2),
        *_several("1", "2", "3"),
        ack("B1", "1"),
        *_several("4"),
    )


def _single() -> Iterator[Conversation]:
    single = queue("A1", "~q", x_single_active_consumer=True)
    yield _consumer(
        "single-active",
        single,
        consume("A1", "~q", "one"),
        consume("B1", "~q", "two"),
        *_several("1", "2"),
        cancel("A1", "one"),
        *_several("3"),
        ack("A1", "1"),
        close_channel("B1"),
        *_several("4"),
        declared("~q"),
    )
    yield _consumer(
        "single-active-and-exclusive",
        single,
        consume("A1", "~q", "one", exclusive=True),
        consume("B1", "~q", "two"),
        consume("B1", "~q", "two", exclusive=True),
    )
    yield _consumer(
        "single-active-prefetch",
        single,
        _qos("A1", 1),
        consume("A1", "~q", "one"),
        consume("B1", "~q", "two"),
        *_several("1", "2"),
        nack("A1", "1"),
        close_connection("A"),
        ack("B1", "1"),
    )
    yield _consumer(
        "single-active-ignores-priority",
        single,
        consume("A1", "~q", "low", x_priority=1),
        consume("B1", "~q", "high", x_priority=9),
        *_several("1"),
        cancel("A1", "low"),
        *_several("2"),
    )
    yield _consumer("single-active-get", single, *_several("1", "2"), consume("A1", "~q", "one"), get("B1", "~q"))


def _prefetch() -> Iterator[Conversation]:
    numbers = ("1", "2", "3", "4", "5")
    backlog = (queue("A1", "~q"), *_several(*numbers))
    yield _consumer("qos-size", _qos("A1", 0, size=100))
    yield _consumer("qos-size-global", _qos("A1", 1, size=1, whole=True))
    yield _consumer("qos-largest", *backlog, _qos("A1", 65_535), consume("A1", "~q"))
    yield _consumer("qos-one", *backlog, _qos("A1", 1), consume("A1", "~q"), ack("A1", "1"), ack("A1", "2"))
    yield _consumer("qos-each", *backlog, _qos("A1", 2), consume("A1", "~q", "one"), consume("A1", "~q", "two"))
    yield _consumer(
        "qos-global",
        *backlog,
        _qos("A1", 3, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        ack("A1", "2", multiple=True),
    )
    yield _consumer(
        "qos-both",
        *backlog,
        _qos("A1", 3, whole=True),
        _qos("A1", 2),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        ack("A1", "1"),
    )
    yield _consumer(
        "qos-later-is-for-later-consumers",
        *backlog,
        consume("A1", "~q", "one"),
        _qos("A1", 1),
        *_several("6"),
        cancel("A1", "one"),
        *_several("7", "8"),
        consume("A1", "~q", "two"),
    )
    yield _consumer(
        "qos-global-raised",
        *backlog,
        _qos("A1", 1, whole=True),
        consume("A1", "~q"),
        _qos("A1", 3, whole=True),
        _qos("A1", 0, whole=True),
    )
    yield _consumer(
        "qos-global-lowered",
        *backlog,
        _qos("A1", 3, whole=True),
        consume("A1", "~q"),
        _qos("A1", 1, whole=True),
        ack("A1", "2", multiple=True),
        ack("A1", "3"),
    )
    yield from _shared_prefetch()
    yield _consumer(
        "qos-does-not-bind-get", *backlog, _qos("A1", 1), get("A1", "~q"), get("A1", "~q"), consume("A1", "~q")
    )
    yield _consumer("qos-not-for-no-ack", *backlog, _qos("A1", 1), consume("A1", "~q", no_ack=True))
    yield _consumer(
        "qos-nacked-goes-to-the-other",
        queue("A1", "~q"),
        _qos("A1", 1),
        consume("A1", "~q", "one"),
        _qos("B1", 1),
        consume("B1", "~q", "two"),
        *_several("1", "2", "3"),
        nack("A1", "1"),
        nack("B1", "2", requeue=False),
    )


def _shared_prefetch() -> Iterator[Conversation]:
    everything = call("A1", "basic.ack", delivery_tag=0, multiple=True)
    yield _consumer(
        "qos-global-rotates",
        queue("A1", "~q"),
        *_several("1", "2", "3", "4", "5", "6"),
        _qos("A1", 1, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        *[everything] * 5,
    )
    yield _consumer(
        "qos-global-rotates-among-three",
        queue("A1", "~q"),
        *_several("1", "2", "3", "4", "5", "6", "7"),
        _qos("A1", 1, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        consume("A1", "~q", "three"),
        *[everything] * 6,
    )
    yield _consumer(
        "qos-global-rotates-as-they-come",
        queue("A1", "~q"),
        _qos("A1", 1, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        *_several("1", "2", "3", "4", "5"),
        *[everything] * 5,
    )
    yield _consumer(
        "qos-global-rotates-one-by-one",
        queue("A1", "~q"),
        _qos("A1", 1, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        *[step for number in "1234" for step in (*_several(number), everything)],
    )
    yield _consumer(
        "qos-global-two-rotate",
        queue("A1", "~q"),
        *_several("1", "2", "3", "4", "5", "6", "7", "8", "9"),
        _qos("A1", 2, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        consume("A1", "~q", "three"),
        *[everything] * 4,
    )
    yield _consumer(
        "qos-global-holds-no-ack",
        queue("A1", "~q"),
        queue("A1", "~other"),
        *_several("1"),
        *_several("a", "b", "c", to="~other"),
        _qos("A1", 1, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~other", "two", no_ack=True),
        *_several("d", to="~other"),
        declared("~other"),
        everything,
        *_several("e", to="~other"),
    )
    yield _consumer(
        "qos-global-not-used-up-by-no-ack",
        queue("A1", "~q"),
        *_several("1", "2", "3"),
        _qos("A1", 1, whole=True),
        consume("A1", "~q", "one", no_ack=True),
        *_several("4", "5"),
    )
    yield _consumer(
        "qos-global-holds-no-ack-of-the-same-queue",
        queue("A1", "~q"),
        *_several("1", "2", "3"),
        _qos("A1", 1, whole=True),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two", no_ack=True),
        declared("~q"),
        *[everything] * 2,
        *_several("4", "5"),
    )


def _in_order() -> Iterator[Conversation]:
    """Yield conversations: the first publish reaches a consumer with credit first, despite a method after it."""
    waiting = (queue("A1", "~q"), consume("A1", "~q", no_ack=True))
    held = (queue("A1", "~q"), _qos("A1", 2), consume("A1", "~q"))
    elsewhere = (queue("A1", "~q"), consume("B1", "~q", no_ack=True))
    one, two, three = (publish("A1", "", "~q", body) for body in ("one", "two", "three"))
    declare = queue("A1", "~q")
    purge = call("A1", "queue.purge", queue="~q")
    for name, consumer in {"no-ack": waiting, "ack": held, "elsewhere": elsewhere}.items():
        behind = {
            "get": get("A1", "~q"),
            "purge": purge,
            "declare": declare,
            "passive": queue("A1", "~q", passive=True),
            "delete": call("A1", "queue.delete", queue="~q"),
            "delete-if-empty": call("A1", "queue.delete", queue="~q", if_empty=True),
        }
        for method, step in behind.items():
            yield _consumer(f"first-the-message-then-{method}-{name}", *consumer, together(one, step))
            if name != "ack" or method not in ("declare", "passive"):  # RabbitMQ counts before it runs the method
                yield _consumer(f"first-three-then-{method}-{name}", *consumer, together(one, two, three, step))
    for name, consumer in {"no-ack": waiting, "ack": held}.items():
        yield _consumer(f"first-the-message-then-cancel-{name}", *consumer, together(one, cancel("A1")), declared("~q"))
        yield _consumer(f"first-three-then-cancel-{name}", *consumer, together(one, two, three, cancel("A1")), declare)
        yield _consumer(
            f"first-the-message-then-close-{name}", *consumer, together(one, close_channel("A1")), get("A1", "~q")
        )
        yield _consumer(
            f"first-three-then-close-{name}", *consumer, together(one, two, three, close_channel("A1")), get("A1", "~q")
        )
    yield _consumer("first-the-message-then-consume", *waiting, together(one, consume("A1", "~q", "new"), two, three))
    yield _consumer("first-three-then-consume", *held, together(one, two, three, consume("A1", "~q", "new")))
    yield _consumer("first-three-then-qos", *waiting, together(one, two, three, _qos("A1", 1, whole=True), purge))
    yield _consumer(
        "first-three-then-shared-qos", *held[:1], held[2], together(one, two, three, _qos("A1", 1, whole=True))
    )
    yield _consumer("first-three-then-qos-raised", *held, together(one, two, three, _qos("A1", 5, whole=True), purge))
    yield _consumer(
        "first-the-message-then-all", *waiting, together(one, purge, two, get("A1", "~q"), three, cancel("A1"))
    )
    yield _consumer(
        "first-persistent-then-get",
        queue("A1", "~q", durable=True),
        consume("A1", "~q"),
        together(publish("A1", "", "~q", "one", delivery_mode=2), get("A1", "~q")),
    )
    yield _consumer(
        "first-confirmed-then-get",
        queue("A1", "~q", durable=True),
        consume("A1", "~q", no_ack=True),
        confirm("A1"),
        together(publish("A1", "", "~q", "one", delivery_mode=2), get("A1", "~q"), two, purge),
    )
    yield _consumer(
        "first-requeued-then-get",
        queue("A1", "~q"),
        *_several("one"),
        get("A1", "~q"),
        consume("A1", "~q", no_ack=True),
        together(call("A1", "basic.reject", delivery_tag=1, requeue=True), get("A1", "~q")),
    )
    yield _consumer(
        "first-the-message-then-what-is-left-goes-back",
        queue("A1", "~q"),
        *_several("old"),
        get("A1", "~q"),
        consume("B1", "~q", no_ack=True),
        together(publish("A1", "", "~q", "new"), close_channel("A1")),
    )
