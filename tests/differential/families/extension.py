"""Direct reply-to, quorum queues, streams refused, consistent hashing."""

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
    close_channel,
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

REPLY_TO = "amq.rabbitmq.reply-to"


def _extension(name: str, *steps: Step) -> Conversation:
    return Conversation(f"extension/{name}", steps)


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield from _reply_to()
    yield from _quorum()
    yield from _others()


def _reply_to() -> Iterator[Conversation]:
    listening = consume("A1", REPLY_TO, "r", no_ack=True)
    asked = (queue("B1", "~rpc"), listening, publish("A1", "", "~rpc", "question", reply_to=REPLY_TO))
    yield _extension("reply-to", *asked, get("B1", "~rpc", no_ack=True), publish("B1", "", "$1", "answer", app_id="b"))
    yield _extension(
        "reply-to-mandatory",
        *asked,
        get("B1", "~rpc", no_ack=True),
        confirm("B1"),
        publish("B1", "", "$1", "answer", mandatory=True),
        close_channel("A1"),
        publish("B1", "", "$1", "too late", mandatory=True),
        publish("B1", "", REPLY_TO + ".made-up", "nobody", mandatory=True),
    )
    yield _extension("reply-to-twice", listening, consume("A1", REPLY_TO, "s", no_ack=True))
    yield _extension("reply-to-with-acks", consume("A1", REPLY_TO, "r"))
    yield _extension("reply-to-unlistened", queue("A1", "~rpc"), publish("A1", "", "~rpc", reply_to=REPLY_TO))
    yield _extension("reply-to-cancelled", listening, cancel("A1", "r"), consume("A1", REPLY_TO, "s", no_ack=True))
    yield _extension("reply-to-no-tag", consume("A1", REPLY_TO, "", no_ack=True))
    yield _extension("reply-to-exclusive", consume("A1", REPLY_TO, "r", no_ack=True, exclusive=True))
    yield _extension(
        "reply-to-passive", queue("A1", REPLY_TO, passive=True), listening, queue("A1", REPLY_TO, passive=True)
    )
    yield _extension("reply-to-declare", queue("A1", REPLY_TO))
    yield _extension("reply-to-get", get("A1", REPLY_TO))
    yield _extension("reply-to-delete", call("A1", "queue.delete", queue=REPLY_TO))
    yield _extension("reply-to-bind", bind("A1", REPLY_TO, "amq.direct", "k"))
    yield _extension(
        "reply-to-asked-for-by-name",
        *asked,
        get("B1", "~rpc", no_ack=True),
        queue("B1", "$1", passive=True),
        queue("B1", REPLY_TO + ".made-up", passive=True),
    )
    yield _extension(
        "reply-to-other-exchange", *asked, get("B1", "~rpc", no_ack=True), publish("B1", "amq.direct", "$1")
    )
    yield _extension(
        "reply-to-two-answers",
        *asked,
        get("B1", "~rpc", no_ack=True),
        publish("B1", "", "$1", "one", priority=1, headers={"a": 1}),
        publish("C1", "", "$1", "two"),
    )


def _quorum() -> Iterator[Conversation]:
    quorum: dict[str, Any] = {"durable": True, "x_queue_type": "quorum"}
    made = (queue("A1", "~q", **quorum), confirm("A1"), publish("A1", "", "~q", "one"))
    yield _extension("quorum", *made, get("A2", "~q"), ack("A2", "one"))
    yield _extension("quorum-transient", queue("A1", "~q", x_queue_type="quorum"))
    yield _extension("quorum-exclusive", queue("A1", "~q", exclusive=True, **quorum))
    yield _extension("quorum-auto-delete", queue("A1", "~q", auto_delete=True, **quorum))
    yield _extension("quorum-inequivalent", queue("A1", "~q", durable=True), queue("A1", "~q", **quorum))
    for argument, value in {
        "x-max-priority": 5,
        "x-queue-mode": "lazy",
        "x-message-ttl": 60_000,
        "x-expires": 60_000,
        "x-max-length": 5,
        "x-overflow": "reject-publish-dlx",
        "x-single-active-consumer": True,
        "x-delivery-limit": -1,
        "x-quorum-initial-group-size": 3,
    }.items():
        arguments = {"x-queue-type": "quorum", argument: value}
        yield _extension(f"quorum-with-{argument}", queue("A1", "~q", durable=True, arguments=arguments))
    yield _extension(
        "quorum-global-qos", *made, call("A2", "basic.qos", prefetch_count=1, global_=True), consume("A2", "~q")
    )
    yield _extension(
        "delivery-count",
        *made,
        call("A2", "basic.qos", prefetch_count=1),
        get("A2", "~q"),
        nack("A2", "one"),
        get("A2", "~q"),
        reject("A2", "one"),
        get("A2", "~q"),
        close_channel("A2"),
        get("A3", "~q"),
    )
    yield _extension(
        "delivery-limit",
        queue("A1", "~dead"),
        queue("A1", "~q", **quorum, x_delivery_limit=2, x_dead_letter_exchange="", x_dead_letter_routing_key="~dead"),
        confirm("A1"),
        publish("A1", "", "~q", "one"),
        *(step for _ in range(3) for step in (get("A2", "~q"), nack("A2", "one"), pause(50))),
        until("~dead", 1),
        get("A2", "~dead"),
    )
    yield _extension(
        "delivery-limit-zero",
        queue("A1", "~q", **quorum, x_delivery_limit=0),
        confirm("A1"),
        publish("A1", "", "~q", "one"),
        get("A2", "~q"),
        nack("A2", "one"),
        declared("~q"),
    )


def _others() -> Iterator[Conversation]:
    yield _extension("stream", queue("A1", "~q", durable=True, x_queue_type="stream"))
    hashed = [publish("A1", "~x", f"key-{number}", mandatory=True) for number in range(12)]
    yield _extension(
        "consistent-hash",
        queue("A1", "~q"),
        exchange("A1", "~x", "x-consistent-hash"),
        confirm("A1"),
        *hashed[:1],
        bind("A1", "~q", "~x", "1"),
        *hashed,
        declared("~q"),
    )
    yield _extension(
        "consistent-hash-weights",
        queue("A1", "~q"),
        exchange("A1", "~x", "x-consistent-hash"),
        *(bind("A1", "~q", "~x", weight) for weight in ("0", "-1", "two", "", "1.5")),
    )
    for arguments in (
        {"hash-header": "h"},
        {"hash-property": "message_id"},
        {"hash-property": "other"},
        {"hash-header": 5},
    ):
        name = "-".join(f"{key}-{value}" for key, value in arguments.items())
        yield _extension(
            f"consistent-hash-by-{name}",
            queue("A1", "~q"),
            exchange("A1", "~x", "x-consistent-hash", arguments=arguments),
            bind("A1", "~q", "~x", "5"),
            confirm("A1"),
            publish("A1", "~x", "", "by it", headers={"h": "1"}, message_id="1"),
            publish("A1", "~x", "", "without"),
        )
    both = {"hash-header": "h", "hash-property": "message_id"}
    yield _extension("consistent-hash-by-both", exchange("A1", "~x", "x-consistent-hash", arguments=both))
