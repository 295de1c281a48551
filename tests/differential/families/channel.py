"""Channels: open and close, flow, and methods at the wrong time."""

from __future__ import annotations

from collections.abc import Iterator

from tests.differential.steps import (
    Conversation,
    Step,
    ack,
    call,
    close_channel,
    confirm,
    consume,
    frames,
    get,
    open_channel,
    publish,
    queue,
)

__all__ = ["conversations"]

_SERVER_ONLY = ("queue.declare-ok", "basic.get-empty", "basic.consume-ok", "channel.open-ok", "exchange.declare-ok")


def _channel(name: str, *steps: Step) -> Conversation:
    return Conversation(f"channel/{name}", steps)


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield _channel("open-close-open", open_channel("A1"), close_channel("A1"), open_channel("A1"))
    yield _channel("open-twice", open_channel("A1"), open_channel("A1"))
    yield _channel("method-on-unopened", open_channel("A1"), call("A2!", "basic.qos"))
    yield _channel("close-unopened", open_channel("A1"), close_channel("A2"))
    yield _channel("close-ok-unasked", open_channel("A1"), call("A1", "channel.close-ok"), call("A1", "basic.qos"))
    yield _channel("close-ok-on-unopened", open_channel("A1"), call("A2!", "channel.close-ok"), open_channel("A2"))
    yield _channel("method-after-close", open_channel("A1"), close_channel("A1"), call("A1!", "basic.qos"))
    yield _channel("flow-on", call("A1", "channel.flow", active=True))
    yield _channel("flow-off", call("A1", "channel.flow", active=False), call("A1", "basic.qos"))
    yield _channel("flow-ok-unasked", call("A1", "channel.flow-ok", active=True), call("A1", "basic.qos"))
    for method in _SERVER_ONLY:
        yield _channel(f"said-by-client-{method}", call("A1", "basic.qos"), call("A1", method))
    yield _channel(
        "error-then-another-channel",
        queue("A1", "~q"),
        call("A1", "queue.declare", queue="~none", passive=True),
        queue("A2", "~q"),
        queue("A1", "~q", passive=True),
    )
    yield _channel(
        "close-requeues-unacked",
        queue("A1", "~q"),
        publish("A2", "", "~q", "one"),
        publish("A2", "", "~q", "two"),
        consume("A1", "~q"),
        ack("A1", "one"),
        close_channel("A1"),
        get("A2", "~q"),
    )
    yield _channel(
        "error-requeues-unacked",
        queue("A1", "~q"),
        publish("A1", "", "~q", "one"),
        get("A1", "~q"),
        call("A1", "basic.ack", delivery_tag=7),
        get("A1", "~q"),
    )
    yield _channel(
        "publish-before-error-arrives",
        queue("A1", "~q"),
        publish("A1", "", "~q", "one"),
        publish("A1", "~none", "k", "lost"),
        publish("A1", "", "~q", "two"),
    )
    yield _channel(
        "what-a-close-discards",
        queue("A1", "~q"),
        call("A1", "queue.declare", queue="~none", passive=True),
        call("A1!", "basic.qos"),
    )
    yield _channel("confirm-forgotten-with-channel", confirm("A1"), close_channel("A1"), queue("A1", "~q"))
    yield _channel("numbers", *(open_channel(f"A{number}") for number in (1, 2, 3, 200, 2047)))
    yield _channel("number-too-large", open_channel("A1"), open_channel("A2048"), open_channel("A65535"))
    yield _channel("heartbeat-on-it", call("A1", "basic.qos"), frames("A1", b"\x08\0\1\0\0\0\0\xce"))
    yield _channel("heartbeat-on-a-closed-one", call("A1", "basic.qos"), frames("A1", b"\x08\0\7\0\0\0\0\xce"))
    yield _channel("heartbeat-with-a-payload-on-it", call("A1", "basic.qos"), frames("A1", b"\x08\0\1\0\0\0\1x\xce"))
