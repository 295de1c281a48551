"""Encodes the messages of a run in advance, in one buffer of equal strides that is sent repeatedly."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from broker.perf import wire
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

EXCHANGE = "bench"
BINDING_KEY = "bench.*.#"
_SEED = 20_240_229


@dataclass(frozen=True, slots=True)
class Tape:
    """A buffer of `messages` encoded messages, `stride_bytes` each."""

    buffer: bytes
    messages: int
    stride_bytes: int
    body_at: int = 0  # the offset of the body in a message


def routing_keys(count: int) -> list[str]:
    """Return `count` distinct routing keys of one length, in an order that no cache can predict."""
    width = len(str(count - 1))
    keys = [f"bench.{number % 97:02d}.{number:0{width}d}" for number in range(count)]
    Random(_SEED).shuffle(keys)
    return keys


def publish_tape(keys: int, body_bytes: int, *, persistent: bool, exchange: str = EXCHANGE) -> Tape:
    """Return the basic.publish frames of `keys` messages, each with its own routing key."""
    body = bytes(body_bytes)
    pieces = [wire.publish(PUBLISH_CHANNEL, exchange, key, body, persistent=persistent) for key in routing_keys(keys)]
    return Tape(b"".join(pieces), keys, len(pieces[0]))


def deliver_tape(keys: int, body_bytes: int, *, persistent: bool, exchange: str = EXCHANGE) -> Tape:
    """Return the same messages as basic.deliver frames, for a relay that forwards bytes unchanged."""
    body = bytes(body_bytes)
    pieces = [
        wire.deliver(CONSUME_CHANNEL, CONSUMER_TAG, exchange, key, body, persistent=persistent)
        for key in routing_keys(keys)
    ]
    return Tape(b"".join(pieces), keys, len(pieces[0]))
