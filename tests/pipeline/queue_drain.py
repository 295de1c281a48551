"""Drains a queue with the bytes of the messages' properties, which clients do not expose."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from broker.amqp.codec import encode_method
from broker.amqp.wire import FRAME_HEAD, PROPERTIES_AT
from broker.client.address import AmqpAddress
from broker.pipeline.sink.amqp_link import CHANNEL, AmqpLink

__all__ = ["drain_queue"]

METHOD, HEADER, BODY = 1, 2, 3
FRAME_BYTES = 8
ANSWER_S = 30.0


def drain_queue(url: str, queue: str) -> list[tuple[str, str, bytes, bytes]]:
    """Return the messages of a queue (exchange, key, properties, body) in order, and leave it empty."""
    link = AmqpLink(AmqpAddress.parse(url), "test")
    found = []
    while (message := get(link, queue)) is not None:
        found.append(message)
    link.send(encode_method(CHANNEL, commands.Basic.Ack(0, multiple=True)))
    link.close()
    return found


def get(link: AmqpLink, queue: str) -> tuple[str, str, bytes, bytes] | None:
    """Return the next message, or None."""
    link.send(encode_method(CHANNEL, commands.Basic.Get(0, queue, no_ack=False)))
    method: Any = None
    while True:
        kind, payload = frame(link)
        if kind == METHOD:
            method = link.method(payload)
            if isinstance(method, commands.Basic.GetEmpty):
                return None
            link.check(method)
        elif kind == HEADER:
            size, properties, body = int.from_bytes(payload[4:PROPERTIES_AT], "big"), payload[PROPERTIES_AT:], b""
            while len(body) < size:
                kind, payload = frame(link)
                assert kind == BODY
                body += payload
            return method.exchange, method.routing_key, properties, body


def frame(link: AmqpLink) -> tuple[int, bytes]:
    """Return the next frame."""
    octets = b""
    while True:
        came = link.receive(ANSWER_S)
        assert came, "the broker did not answer"
        octets += came
        if len(octets) >= FRAME_HEAD.size:
            kind, _, length = FRAME_HEAD.unpack_from(octets)
            end = FRAME_BYTES + length
            if len(octets) >= end:
                link.give_back(octets[end:])
                return kind, octets[FRAME_HEAD.size : end - 1]
