"""Publishes the temperature of three rooms once a second, persistent and confirmed."""

from __future__ import annotations

import json
import os
import random
import time
from itertools import count

import pika

ROOMS = ("kitchen", "cellar", "roof")


def main() -> None:
    """Publish until it is stopped."""
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = connection.channel()
    channel.exchange_declare("rooms", "topic", durable=True)
    channel.confirm_delivery()
    for number in count(1):
        room = random.choice(ROOMS)  # simulated weather, not a secret
        body = json.dumps({"number": number, "celsius": round(random.gauss(18, 4), 1)})
        channel.basic_publish("rooms", f"{room}.temperature", body.encode(), pika.BasicProperties(delivery_mode=2))
        print(f"published {number} to {room}.temperature")
        time.sleep(1)


if __name__ == "__main__":
    main()
