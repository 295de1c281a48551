"""Publish the prices of the stocks that consumers want, and publish nothing while there are none.

Run it against a broker of an overlay whose exchanges include `stocks`:

    python examples/quiet_publisher.py amqp://guest:guest@localhost/%2F

Then bind a queue to `stocks`, at this broker or at any other one: `slotmq bind stocks q "stock.nyse.*"`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import pika

STOCKS = ("nyse.ibm", "nyse.ge", "nasdaq.aapl")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def words(key: str) -> list[str]:
    """Return the words of a routing key or of a pattern."""
    return key.split(".") if key else []


def matches(pattern: Sequence[str], key: Sequence[str]) -> bool:
    """Return whether the words of a topic pattern match those of a routing key."""
    if not pattern:
        return not key
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return matches(rest, key) or (bool(key) and matches(pattern, key[1:]))
    return bool(key) and first in ("*", key[0]) and matches(rest, key[1:])


def main() -> None:
    """Publish until interrupted."""
    connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
    channel = connection.channel()
    channel.exchange_declare("stocks", "topic", durable=True)
    feed = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(feed, "amq.slotmq.interest", "stocks")  # the routing key is the name of the exchange
    wanted: set[str] = set()

    def on_interest(_channel: Any, _deliver: Any, _properties: Any, body: bytes) -> None:
        pattern = body[1:].decode()
        if body[:1] == b"1":
            wanted.add(pattern)
            print("wanted", pattern, flush=True)
        else:
            wanted.discard(pattern)
            print("not wanted any more", pattern, flush=True)

    channel.basic_consume(feed, on_interest, auto_ack=True)
    for number in itertools.count(1):
        connection.process_data_events(time_limit=0.1)
        for stock in STOCKS:
            key = f"stock.{stock}"
            if any(matches(words(pattern), words(key)) for pattern in wanted):
                channel.basic_publish("stocks", key, f"{stock} {number}".encode(), PERSISTENT)


if __name__ == "__main__":
    main()
