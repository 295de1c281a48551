"""Queues: every argument with valid and invalid values, equivalence, owners, conditions of delete, names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.steps import (
    Conversation,
    Step,
    bind,
    call,
    cancel,
    close_connection,
    confirm,
    consume,
    declared,
    exchange,
    get,
    publish,
    queue,
)
from tests.differential.wire import Typed

__all__ = ["conversations"]

_NUMBERS: dict[str, Any] = {
    "zero": 0,
    "one": 1,
    "long": 60_000,
    "octet": Typed("b", 5),
    "negative": -1,
    "huge": 2**33,
    "past-any-timer": 2**62,
    "text": "5",
    "double": 1.5,
    "bool": True,
    "void": None,
    "table": {"a": 1},
    "timestamp": Typed("T", 5),
}
_TEXTS: dict[str, Any] = {
    "text": "~other",
    "empty": "",
    "number": 5,
    "bool": True,
    "void": None,
    "binary": b"other",
    "list": ["other"],
}
_SPECIAL: dict[str, list[Any]] = {
    "x-max-priority": [0, 1, 10, 255, 256, -1, "5", 2.5, True],
    "x-overflow": ["drop-head", "reject-publish", "reject-publish-dlx", "drop-tail", "", 5],
    "x-queue-mode": ["default", "lazy", "other", 5],
    "x-queue-type": ["classic", "quorum", "stream", "other", 5],
    "x-single-active-consumer": [True, False, "true", 1],
    "x-dead-letter-strategy": ["at-most-once", "at-least-once", "other"],
    "x-queue-master-locator": ["client-local", "other"],
    "x-queue-version": [1, 2, 3, "2"],
    "x-max-age": ["1D", "1X"],
    "x-cancel-on-ha-failover": [True],
    "x-unknown": ["kept", 5],
}
_CHANGES: dict[str, dict[str, Any]] = {
    "durable": {"durable": True},
    "auto-delete": {"auto_delete": True},
    "exclusive": {"exclusive": True},
    "ttl": {"x_message_ttl": 1000},
    "expires": {"x_expires": 60_000},
    "max-length": {"x_max_length": 5},
    "max-bytes": {"x_max_length_bytes": 5},
    "overflow": {"x_overflow": "reject-publish"},
    "dead-letter-exchange": {"x_dead_letter_exchange": "~x"},
    "max-priority": {"x_max_priority": 3},
    "single-active": {"x_single_active_consumer": True},
    "queue-mode": {"x_queue_mode": "lazy"},
    "queue-type": {"x_queue_type": "quorum", "durable": True},
    "unknown": {"x_unknown": 1},
}


def _queue(name: str, *steps: Step) -> Conversation:
    return Conversation(f"queue/{name}", steps)


def _delete(at: str, name: str, **fields: Any) -> Step:
    return call(at, "queue.delete", queue=name, **fields)


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield from _arguments()
    yield from _equivalence()
    yield from _names()
    yield from _owners()
    yield from _ends()
    yield from _purges()


def _arguments() -> Iterator[Conversation]:
    for argument in ("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-delivery-limit"):
        tries = [queue("A1", f"~{what}", arguments={argument: value}) for what, value in _NUMBERS.items()]
        yield _queue(f"argument-{argument}", *tries)
    for what, value in _TEXTS.items():
        yield _queue(
            f"argument-dead-letter-{what}",
            queue("A1", "~q", arguments={"x-dead-letter-exchange": value}),
            queue("A1", "~p", arguments={"x-dead-letter-exchange": "~x", "x-dead-letter-routing-key": value}),
            queue("A1", "~r", arguments={"x-dead-letter-routing-key": value}),
        )
    for argument, values in _SPECIAL.items():
        tries = [
            queue("A1", f"~q{number}", durable=True, arguments={argument: value}) for number, value in enumerate(values)
        ]
        yield _queue(f"argument-{argument}", *tries)
    yield _queue(
        "argument-nowait",
        queue("A1", "~q", nowait=True, x_message_ttl="no"),
        queue("A1", "~q", passive=True, x_message_ttl="no"),
    )


def _equivalence() -> Iterator[Conversation]:
    for what, change in _CHANGES.items():
        yield _queue(f"inequivalent-{what}", queue("A1", "~q"), queue("A1", "~q", **change), queue("A1", "~q"))
        yield _queue(f"inequivalent-not-{what}", queue("A1", "~q", **change), queue("A1", "~q"))
    yield _queue(
        "inequivalent-values",
        queue("A1", "~q", x_message_ttl=1000, x_dead_letter_exchange="~a"),
        queue("A1", "~q", x_message_ttl=1000, x_dead_letter_exchange="~a"),
        queue("A1", "~q", x_message_ttl=Typed("l", 1000), x_dead_letter_exchange="~a"),
        queue("A1", "~q", x_message_ttl=1001, x_dead_letter_exchange="~a"),
        queue("A1", "~q", x_message_ttl=1000, x_dead_letter_exchange="~b"),
        queue("A1", "~q", x_message_ttl="1000", x_dead_letter_exchange="~a"),
        queue("A1", "~q", passive=True),
    )
    yield _queue(
        "passive-compares-nothing",
        queue("A1", "~q", durable=True, x_message_ttl=1000),
        queue("A1", "~q", passive=True, auto_delete=True, x_message_ttl=5),
        queue("A1", "~none", passive=True),
    )


def _names() -> Iterator[Conversation]:
    yield _queue(
        "server-named",
        queue("A1", "", exclusive=True),
        queue("A1", "", passive=True),
        publish("A1", "", "$1", "one"),
        get("A1", "", no_ack=True),
        consume("A1", ""),
        queue("A1", "", auto_delete=True),
        bind("A1", "", "amq.direct", "~k"),
        publish("A1", "amq.direct", "~k", "two"),
        call("A1", "queue.purge", queue=""),
        _delete("A1", ""),
        get("A1", ""),
    )
    yield _queue("last-name-of-another-channel", queue("A1", "~q"), get("A2", ""))
    yield _queue("no-name-passive", queue("A1", "", passive=True))
    yield _queue("no-name-consume", consume("A1", ""))
    yield _queue("no-name-bind", bind("A1", "", "amq.direct", "k"))
    yield _queue("no-name-purge", call("A1", "queue.purge", queue=""))
    yield _queue("no-name-delete", _delete("A1", ""))
    yield _queue(
        "no-name-and-no-key", queue("A1", "~q"), bind("A1", "", "amq.direct"), publish("A1", "amq.direct", "~q")
    )
    yield _queue("reserved", queue("A1", "amq.mine"), queue("A1", "amq.mine", passive=True))
    yield _queue("reserved-rabbitmq", queue("A1", "amq.rabbitmq.mine"))
    yield _queue("with-newlines", queue("A1", "~q\r\n"), get("A1", "~q\r\n"))
    yield _queue("with-spaces-and-unicode", queue("A1", "~ q é 漢 "), get("A1", "~ q é 漢 "))
    yield _queue("longest", queue("A1", "~" + 247 * "q"), publish("A1", "", "~" + 247 * "q", "here"))


def _owners() -> Iterator[Conversation]:
    yield _queue(
        "exclusive",
        queue("A1", "~q", exclusive=True),
        queue("A2", "~q", exclusive=True),
        queue("A1", "~q"),
        queue("B1", "~q", exclusive=True),
        queue("B1", "~q"),
        queue("B1", "~q", passive=True),
        consume("B1", "~q"),
        get("B1", "~q"),
        bind("B1", "~q", "amq.direct", "k"),
        call("B1", "queue.unbind", queue="~q", exchange="amq.direct", routing_key="k"),
        call("B1", "queue.purge", queue="~q"),
        _delete("B1", "~q"),
        publish("B1", "", "~q", "anybody may publish"),
        get("A1", "~q"),
        close_connection("A"),
        queue("B1", "~q", exclusive=True),
    )
    yield _queue(
        "exclusive-bound",
        queue("A1", "~q", exclusive=True),
        bind("A1", "~q", "amq.direct", "~k"),
        call("B1", "queue.unbind", queue="~q", exchange="amq.direct", routing_key="~k"),
        publish("B1", "amq.direct", "~k", "still bound"),
        get("A1", "~q"),
    )
    yield _queue(
        "exclusive-redeclared",
        queue("A1", "~q"),
        queue("B1", "~q", exclusive=True),
        queue("A1", "~q", exclusive=True),
        queue("A1", "~q", passive=True, exclusive=True),
    )
    yield _queue("exclusive-durable", queue("A1", "~q", exclusive=True, durable=True), close_connection("A"))


def _ends() -> Iterator[Conversation]:
    yield _queue("delete-missing", _delete("A1", "~q"))
    yield _queue("delete-nowait", queue("A1", "~q"), _delete("A1", "~q", nowait=True), queue("A1", "~q", passive=True))
    yield _queue(
        "delete-tells-consumers-behind-the-answer",
        queue("A1", "~q"),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        consume("A2", "~q", "three"),
        consume("B1", "~q", "four"),
        _delete("A1", "~q"),
        queue("A1", "~q", passive=True),
    )
    yield _queue(
        "delete-nowait-tells-consumers",
        queue("A1", "~q"),
        consume("A1", "~q"),
        _delete("A1", "~q", nowait=True),
        call("A1", "basic.qos"),
    )
    yield _queue(
        "delete-if-empty",
        queue("A1", "~q"),
        publish("A1", "", "~q", "one"),
        _delete("A1", "~q", if_empty=True),
        get("A1", "~q", no_ack=True),
        _delete("A1", "~q", if_empty=True),
    )
    yield _queue(
        "delete-if-empty-unacked",
        queue("A1", "~q"),
        publish("A1", "", "~q", "one"),
        get("A1", "~q"),
        _delete("A1", "~q", if_empty=True),
        call("A1", "basic.ack", delivery_tag=1),
        call("A1", "basic.qos"),
    )
    yield _queue(
        "delete-if-unused",
        queue("A1", "~q"),
        consume("A1", "~q"),
        _delete("A1", "~q", if_unused=True),
        queue("A1", "~q", passive=True),
        _delete("A1", "~q", if_unused=True),
    )
    yield _queue(
        "delete-if-both",
        queue("A1", "~q"),
        publish("A1", "", "~q"),
        consume("B1", "~q"),
        _delete("A1", "~q", if_unused=True, if_empty=True),
    )
    yield _queue(
        "delete-cancels-consumers",
        queue("A1", "~q"),
        consume("A1", "~q", "own"),
        consume("B1", "~q", "other"),
        publish("A1", "", "~q", "one"),
        publish("A1", "", "~q", "two"),
        _delete("C1", "~q"),
        call("A1", "basic.ack", delivery_tag=1),
        cancel("A1", "own"),
    )
    yield _queue(
        "delete-counts",
        queue("A1", "~q"),
        *(publish("A1", "", "~q", body) for body in ("one", "two", "three")),
        get("A1", "~q"),
        _delete("A1", "~q"),
    )
    yield _queue(
        "auto-delete",
        queue("A1", "~q", auto_delete=True),
        declared("~q"),
        consume("A1", "~q", "one"),
        consume("A1", "~q", "two"),
        cancel("A1", "one"),
        declared("~q"),
        cancel("A1", "two"),
        declared("~q"),
    )
    yield _queue(
        "auto-delete-with-connection",
        queue("A1", "~q", auto_delete=True),
        consume("A1", "~q"),
        close_connection("A"),
        declared("~q"),
    )
    yield _queue("auto-delete-unused", queue("A1", "~q", auto_delete=True), close_connection("A"), declared("~q"))
    yield _queue(
        "bindings-go-with-it",
        exchange("A1", "~x"),
        queue("A1", "~q"),
        bind("A1", "~q", "~x", "k"),
        _delete("A1", "~q"),
        queue("A1", "~q"),
        confirm("A1"),
        publish("A1", "~x", "k", mandatory=True),
    )


def _purges() -> Iterator[Conversation]:
    yield _queue("purge-missing", call("A1", "queue.purge", queue="~q"))
    yield _queue(
        "purge",
        queue("A1", "~q"),
        *(publish("A1", "", "~q", body) for body in ("one", "two", "three")),
        get("A1", "~q"),
        call("A1", "queue.purge", queue="~q"),
        get("A1", "~q"),
        publish("A1", "", "~q", "four"),
        call("A1", "basic.nack", delivery_tag=1, requeue=True),
        get("A1", "~q", no_ack=True),
    )
    yield _queue(
        "purge-nowait", queue("A1", "~q"), publish("A1", "", "~q"), call("A1", "queue.purge", queue="~q", nowait=True)
    )
