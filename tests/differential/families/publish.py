"""Publishing: returns, confirms, relayed properties, copies, user-id, sizes."""

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
    exchange,
    frames,
    get,
    publish,
    queue,
)
from tests.differential.wire import Typed

__all__ = ["conversations"]

_EVERYTHING: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {
        "octet": Typed("b", -1),
        "octet-unsigned": Typed("B", 255),
        "short": Typed("s", -2),
        "short-unsigned": Typed("u", 2),
        "int": 3,
        "int-unsigned": Typed("i", 3),
        "long": Typed("l", 4),
        "float": Typed("f", 0.5),
        "double": 0.25,
        "bool": True,
        "text": "é",
        "binary": b"\x01\x02",
        "time": Typed("T", 1_000_000_000),
        "void": None,
        "list": [1, "two", [3], {"four": 4}],
        "table": {"deep": {"deeper": "x"}},
    },
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "somewhere",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1_000_000_000,
    "message_type": "kind",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}
_COPIES: dict[str, Any] = {
    "list": ["~b", "~c"],
    "repeated": ["~a", "~b", "~b"],
    "missing": ["~none"],
    "empty": [],
    "text": "~b",
    "number": 5,
    "list-of-numbers": [1, 2],
    "mixed": ["~b", 5],
    "void": None,
}


def _publish(name: str, *steps: Step) -> Conversation:
    return Conversation(f"publish/{name}", steps)


def conversations() -> Iterator[Conversation]:
    """Yield the family."""
    yield _publish("missing-exchange", publish("A1", "~none", "k"), call("A1", "basic.qos"))
    yield _publish("missing-exchange-confirming", confirm("A1"), publish("A1", "~none", "k"), confirm("A1"))
    yield _publish("unroutable", confirm("A1"), publish("A1", "", "~none"), publish("A1", "amq.fanout", "~none"))
    yield _publish("mandatory-unconfirmed", publish("A1", "", "~none", "back", mandatory=True, **_EVERYTHING))
    yield _publish("mandatory-empty-body", publish("A1", "", "~none", "", mandatory=True))
    yield _publish("mandatory-routed", queue("A1", "~q"), publish("A1", "", "~q", "there", mandatory=True))
    yield _publish("immediate", queue("A1", "~q"), publish("A1", "", "~q", immediate=True), get("A1", "~q"))
    yield _publish(
        "everything-comes-through", queue("A1", "~q"), publish("A1", "", "~q", **_EVERYTHING), get("A1", "~q")
    )
    yield _publish("nothing-comes-through", queue("A1", "~q"), publish("A1", "", "~q", ""), get("A1", "~q"))
    yield _publish("large", queue("A1", "~q"), _large("A1", "~q", 400_000), get("A1", "~q"))
    for mode in (0, 1, 2, 3, 255):
        yield _publish(
            f"delivery-mode-{mode}",
            queue("A1", "~q", durable=True),
            confirm("A1"),
            publish("A1", "", "~q", delivery_mode=mode),
            consume("A1", "~q"),
        )
    for name in ("expiration", "user_id"):
        for value in ("", "0", "5x", "-1", "guest", "1e3", " 60000", "60000.5", "99999999999999999999"):
            yield _publish(
                f"{name}-{value or 'empty'}",
                queue("A1", "~q"),
                queue("A1", "~other"),
                confirm("A1"),
                publish("A1", "", "~q", **{name: value}),
                publish("A1", "", "~other", "after"),
            )
    for name in ("CC", "BCC"):
        for what, value in _COPIES.items():
            yield _publish(f"{name}-{what}", *_copied({name: value}))
    yield _publish("CC-and-BCC", *_copied({"CC": ["~b"], "BCC": ["~c"], "other": 1}))
    yield _publish("BCC-alone", *_copied({"BCC": ["~c"]}))
    yield _publish("CC-lower-case", *_copied({"cc": ["~b"], "bcc": ["~c"]}))
    yield _publish(
        "CC-through-an-exchange",
        queue("A1", "~q"),
        queue("A1", "~p"),
        exchange("A1", "~x", "topic"),
        confirm("A1"),
        bind("A1", "~q", "~x", "a.*"),
        bind("A1", "~p", "~x", "b.*"),
        publish("A1", "~x", "none", headers={"CC": ["a.1", "a.2", "b.1"]}, mandatory=True),
        publish("A1", "~x", "none", "back", headers={"CC": ["no.1"], "BCC": ["no.2"]}, mandatory=True),
    )
    yield _publish(
        "header-of-another-class", call("A1", "basic.qos"), frames("A1", _content(b"\0\x32\0\0" + 10 * b"\0"))
    )
    yield _publish("header-with-weight", call("A1", "basic.qos"), frames("A1", _content(b"\0\x3c\0\1" + 10 * b"\0")))
    yield _publish("body-too-long", call("A1", "basic.qos"), frames("A1", _content(b"\0\x3c\0\0" + 10 * b"\0", b"x")))


def _large(at: str, key: str, size: int) -> Step:
    return Step("publish", at, {"exchange": "", "key": key, "body": "x", "repeat": size})


def _copied(headers: dict[str, Any]) -> list[Step]:
    queues = [queue("A1", name) for name in ("~a", "~b", "~c")]
    return [*queues, confirm("A1"), publish("A1", "", "~a", headers=headers, mandatory=True), call("A1", "basic.qos")]


def _content(header: bytes, *bodies: bytes) -> bytes:
    payloads = [(1, b"\0\x3c\0\x28\0\0\0\0\0"), (2, header), *((3, body) for body in bodies)]
    return b"".join(
        bytes([kind]) + b"\0\1" + len(payload).to_bytes(4, "big") + payload + b"\xce" for kind, payload in payloads
    )
