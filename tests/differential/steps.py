"""The steps of conversations. Each names its channel: `A1` is channel 1 of connection A.

`~` in a name is replaced with a prefix unique to the conversation; `$1` is the first name that the broker generated in
it, `$2` the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.differential.wire import METHODS

__all__ = ["PREFIX_LENGTH", "Conversation", "Step", "call", "connect", "drop", "frames", "open_channel", "pause"]
__all__ += ["ack", "bind", "cancel", "confirm", "consume", "exchange", "get", "nack", "publish", "queue", "reject"]
__all__ += ["close_channel", "close_connection", "declared", "together", "until"]

PREFIX_LENGTH = 8
"""The length of the prefix that replaces `~`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a client."""

    verb: str
    at: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Step, ...] = ()

    def __str__(self) -> str:
        if self.parts:
            return f"{self.at} {self.verb}: " + "; ".join(map(str, self.parts))
        said = " ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"{self.at} {self.verb} {said}".rstrip()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Steps in order. Their first use opens connections and channels; the queues' contents are compared at the end."""

    name: str
    steps: tuple[Step, ...]

    @property
    def queues(self) -> tuple[str, ...]:
        """Return the queues that the steps name: their contents are compared at the end, and they are deleted."""
        return self._named("queue.declare", "queue")

    @property
    def exchanges(self) -> tuple[str, ...]:
        """Return the exchanges that the steps name: they are deleted at the end."""
        return self._named("exchange.declare", "exchange")

    def _named(self, verb: str, key: str) -> tuple[str, ...]:
        found = (str(step.fields.get(key, "")) for step in self.steps if step.verb == verb)
        return tuple(dict.fromkeys(name for name in found if name.startswith("~")))


def call(at: str, method: str, **fields: Any) -> Step:
    """Return the step that sends any method."""
    assert method in METHODS, method
    return Step(method, at, fields)


def connect(at: str, **options: Any) -> Step:
    """Return the step that opens a connection with options: see Talk._handshake."""
    return Step("connect", at, options)


def open_channel(at: str) -> Step:
    """Return the step that opens a channel again."""
    return Step("channel.open", at)


def close_channel(at: str) -> Step:
    """Return the step that closes a channel cleanly."""
    return Step("channel.close", at, {"reply_code": 200, "reply_text": "bye"})


def close_connection(at: str) -> Step:
    """Return the step that closes a connection cleanly."""
    return Step("connection.close", f"{at}0", {"reply_code": 200, "reply_text": "bye"})


def drop(at: str) -> Step:
    """Return the step that drops a connection without connection.close."""
    return Step("drop", at)


def frames(at: str, octets: bytes) -> Step:
    """Return the step that sends bytes unchanged."""
    return Step("frames", at, {"octets": octets.hex()})


def together(*parts: Step) -> Step:
    """Return the step that sends methods and messages of one connection in one write, without waiting for answers."""
    return Step("together", parts[0].at, parts=parts)


def pause(ms: int) -> Step:
    """Return the step that waits."""
    return Step("pause", "-", {"ms": ms})


def until(name: str, count: int) -> Step:
    """Return the step that waits until a queue has this many ready messages."""
    return Step("until", "-", {"queue": name, "count": count})


def declared(*names: str) -> Step:
    """Return the step that checks on a separate connection which queues exist and how many messages they have."""
    return Step("look", "-", {"queues": list(names)})


def queue(at: str, name: str, **fields: Any) -> Step:
    """Return queue.declare; `x_...` fields are arguments."""
    return call(at, "queue.declare", queue=name, **_arguments(fields))


def exchange(at: str, name: str, kind: str = "direct", **fields: Any) -> Step:
    """Return exchange.declare; `x_...` fields are arguments."""
    return call(at, "exchange.declare", exchange=name, exchange_type=kind, **_arguments(fields))


def _arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in fields.items() if not name.startswith("x_")}
    arguments = {name.replace("_", "-"): value for name, value in fields.items() if name.startswith("x_")}
    return plain | {"arguments": arguments} if arguments else plain


def bind(at: str, queue_name: str, exchange_name: str, key: str = "", **arguments: Any) -> Step:
    """Return queue.bind."""
    fields: dict[str, Any] = {"queue": queue_name, "exchange": exchange_name, "routing_key": key}
    return call(at, "queue.bind", **fields, **({"arguments": arguments} if arguments else {}))


def publish(at: str, exchange_name: str, key: str, body: str = "m", **properties: Any) -> Step:
    """Return the step that publishes one message; `mandatory` and `immediate` are flags, the rest are properties."""
    fields: dict[str, Any] = {"exchange": exchange_name, "key": key, "body": body}
    fields |= {flag: True for flag in ("mandatory", "immediate") if properties.pop(flag, False)}
    return Step("publish", at, fields | ({"properties": properties} if properties else {}))


def consume(at: str, queue_name: str, tag: str = "c", **fields: Any) -> Step:
    """Return basic.consume; `x_...` fields are arguments."""
    return call(at, "basic.consume", queue=queue_name, consumer_tag=tag, **_arguments(fields))


def cancel(at: str, tag: str = "c") -> Step:
    """Return basic.cancel."""
    return call(at, "basic.cancel", consumer_tag=tag)


def get(at: str, queue_name: str, *, no_ack: bool = False) -> Step:
    """Return basic.get."""
    return call(at, "basic.get", queue=queue_name, no_ack=no_ack)


def ack(at: str, body: str, *, multiple: bool = False) -> Step:
    """Return the ack of the latest delivery on the channel with this body."""
    return Step("ack", at, {"body": body, "multiple": multiple})


def nack(at: str, body: str, *, requeue: bool = True, multiple: bool = False) -> Step:
    """Return the nack of the latest delivery on the channel with this body."""
    return Step("nack", at, {"body": body, "requeue": requeue, "multiple": multiple})


def reject(at: str, body: str, *, requeue: bool = True) -> Step:
    """Return the reject of the latest delivery on the channel with this body."""
    return Step("reject", at, {"body": body, "requeue": requeue})


def confirm(at: str) -> Step:
    """Return confirm.select."""
    return call(at, "confirm.select")
