"""Prints the temperatures of all rooms that the publisher sends."""

from __future__ import annotations

import os
from typing import Any

import pika


def main() -> None:
    """Consume until it is stopped."""
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = connection.channel()
    channel.exchange_declare("rooms", "topic", durable=True)
    channel.queue_declare("temperatures", durable=True)
    channel.queue_bind("temperatures", "rooms", "*.temperature")
    channel.basic_qos(prefetch_count=100)

    def show(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        print(f"{method.routing_key}: {body.decode()}")
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume("temperatures", show)
    channel.start_consuming()


if __name__ == "__main__":
    main()
