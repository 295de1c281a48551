"""Connections: greeting, tuning, vhosts, refused logins, and the ends of connections."""

from __future__ import annotations

from collections.abc import Iterator

from tests.differential.link import CAPABILITIES
from tests.differential.steps import (
    Conversation,
    Step,
    call,
    close_connection,
    connect,
    consume,
    drop,
    frames,
    get,
    publish,
    queue,
    together,
)

__all__ = ["conversations"]

_QUIET = {name: present for name, present in CAPABILITIES.items() if name != "authentication_failure_close"}


def _log_in(name: str, *steps: Step) -> Conversation:
    return Conversation(f"connection/{name}", steps)


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield _log_in("greeting", connect("A", verbose=True), close_connection("A"))
    yield _log_in("amqplain", connect("A", mechanism="AMQPLAIN", response=_AMQPLAIN), close_connection("A"))
    yield _log_in("amqplain-wrong", connect("A", mechanism="AMQPLAIN", response=_AMQPLAIN_WRONG))
    yield _log_in("wrong-password", connect("A", password="wrong"))
    yield _log_in("wrong-password-told-nothing", connect("A", password="wrong", capabilities=_QUIET))
    yield _log_in("unknown-user", connect("A", user="nobody", password="guest"))
    yield _log_in("empty-password", connect("A", password=""))
    yield _log_in("unknown-mechanism", connect("A", mechanism="KERBEROS"))
    yield _log_in("unknown-locale", connect("A", locale="xx_XX"), close_connection("A"))
    yield _log_in("unknown-vhost", connect("A", vhost="~nowhere"))
    yield _log_in("vhost-that-is-empty", connect("A", vhost=""))
    yield _log_in("other-protocol-0-10", connect("A", protocol=b"AMQP\x01\x01\x00\x0a".hex()))
    yield _log_in(
        "other-protocol-0-8", connect("A", protocol=b"AMQP\x01\x01\x08\x00".hex(), verbose=True), close_connection("A")
    )
    yield _log_in("no-protocol", connect("A", protocol=b"GET / HT".hex()))
    yield _log_in("small-frames", connect("A", frame_max=4096), queue("A1", "~q"), publish("A1", "", "~q", "small"))
    yield _log_in("frames-too-small", connect("A", frame_max=2048))
    yield _log_in("frames-without-limit", connect("A", frame_max=0))
    yield _log_in("frames-too-large", connect("A", frame_max=262_144))
    yield _log_in("channels-too-many", connect("A", channel_max=4096))
    yield _log_in("channels-without-limit", connect("A", channel_max=0))
    yield _log_in(
        "channel-beyond-the-limit",
        connect("A", channel_max=3),
        call("A3", "channel.open"),
        call("A4", "channel.open"),
    )
    yield _log_in(
        "channels-of-any-number-up-to-the-limit",
        connect("A", channel_max=2),
        call("A65535", "channel.open"),
        call("A7", "channel.open"),
        call("A9", "channel.open"),
    )
    yield _log_in("open-twice", connect("A"), call("A0", "connection.open", virtual_host="/"))
    yield _log_in("tune-ok-again", connect("A"), call("A0", "connection.tune-ok", channel_max=1))
    yield _log_in("start-ok-again", connect("A"), call("A0", "connection.start-ok", mechanism="PLAIN"))
    yield _log_in("a-broker's-method", connect("A"), call("A0", "connection.open-ok"))
    yield _log_in("queue-method-on-channel-0", connect("A"), call("A0", "queue.declare", queue="~q"))
    yield _log_in("connection-method-on-channel-1", call("A1", "basic.qos"), call("A1!", "connection.close"))
    yield _log_in("close-told", call("A1", "basic.qos"), close_connection("A"))
    yield _log_in(
        "close-with-more-behind-it",
        queue("A1", "~q"),
        together(publish("A1", "", "~q", "one"), close_connection("A"), publish("A1", "", "~q", "two")),
        get("B1", "~q"),
    )
    yield _log_in(
        "close-requeues",
        queue("A1", "~q"),
        publish("A1", "", "~q", "one"),
        publish("A1", "", "~q", "two"),
        get("A1", "~q"),
        close_connection("A"),
        get("B1", "~q"),
    )
    yield _log_in(
        "drop-requeues",
        queue("A1", "~q"),
        publish("A1", "", "~q", "one"),
        publish("A1", "", "~q", "two"),
        consume("A1", "~q"),
        drop("A"),
        get("B1", "~q", no_ack=True),
        get("B1", "~q"),
    )
    yield _log_in("update-secret", connect("A"), call("A0", "connection.update-secret", new_secret="new", reason="why"))
    yield _log_in("unknown-class", call("A1", "basic.qos"), frames("A1", _method(77, 10)))
    yield _log_in("unknown-method", call("A1", "basic.qos"), frames("A1", _method(60, 200)))
    yield _log_in("access-request", call("A1", "basic.qos"), frames("A1", _method(30, 10, b"\x05/data\x1f")))
    yield _log_in("unknown-frame-type", call("A1", "basic.qos"), frames("A1", b"\x05\0\1\0\0\0\0\xce"))
    yield _log_in("wrong-frame-end", call("A1", "basic.qos"), frames("A1", b"\x01\0\1\0\0\0\x04\0\x14\0\x0a\xff"))
    yield _log_in("body-without-method", call("A1", "basic.qos"), frames("A1", b"\x03\0\1\0\0\0\x01x\xce"))
    yield _log_in(
        "method-inside-content",
        call("A1", "basic.qos"),
        frames("A1", _method(60, 40, b"\0\0\0\0\0") + _method(60, 10, b"\0\0\0\0\0\0\0")),
    )


def _method(class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    payload = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + arguments
    return b"\x01\0\1" + len(payload).to_bytes(4, "big") + payload + b"\xce"


_AMQPLAIN = "\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"
_AMQPLAIN_WRONG = "\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05wrong"
