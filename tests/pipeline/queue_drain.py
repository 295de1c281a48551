"""Drains a queue with the bytes of the messages' properties, which clients do not expose."""

from __future__ import annotations

from pamqp import commands

from broker.amqp.wire import PROPERTIES_AT
from broker.client.address import AmqpAddress
from broker.client.blocking import BlockingLink

__all__ = ["drain_queue"]

CHANNEL = 1


def drain_queue(url: str, queue: str) -> list[tuple[str, str, bytes, bytes]]:
    """Return the messages of a queue (exchange, key, properties, body) in order, and leave it empty."""
    link = BlockingLink(AmqpAddress.parse(url), {"connection_name": "test"})
    found: list[tuple[str, str, bytes, bytes]] = []
    get = commands.Basic.Get(0, queue, no_ack=False)
    while isinstance((got := link.call(CHANNEL, get)).method, commands.Basic.GetOk):
        method = got.method
        found.append((method.exchange, method.routing_key or "", got.header[PROPERTIES_AT:], got.body))
    link.client.send(CHANNEL, commands.Basic.Ack(0, multiple=True))
    link.close()
    return found
