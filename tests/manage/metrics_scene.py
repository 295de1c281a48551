"""A client that runs each counted operation: RabbitMQ's metrics were recorded with it, ours are compared to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pika.exceptions
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

__all__ = ["FAMILIES", "busy_client", "described", "samples"]

FAMILIES = (
    "queue_coarse_metrics", "queue_metrics", "channel_metrics", "channel_exchange_metrics", "channel_queue_metrics",
    "channel_queue_exchange_metrics", "connection_coarse_metrics", "connection_metrics", "connection_churn_metrics",
    "node_metrics", "node_coarse_metrics",
)  # fmt: skip
"""The metric families of RabbitMQ 3.10."""


@contextmanager
def busy_client(port: int) -> Iterator[None]:
    """Run each operation, and keep a connection with two channels and a consumer open while the block runs."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel: Any = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("orders", passive=True)
    channel.queue_declare("gone")
    channel.queue_delete("gone")
    channel.exchange_declare("shop", "topic")
    channel.queue_bind("orders", "shop", "order.#")
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("shop", f"order.{number}", b"x" * 10)
    channel.basic_publish("shop", "nothing", b"x")
    try:
        channel.basic_publish("shop", "nothing", b"x", mandatory=True)
    except pika.exceptions.UnroutableError:
        pass
    channel.basic_publish("", "orders", b"y" * 1000)
    channel.basic_ack(channel.basic_get("orders")[0].delivery_tag)
    channel.basic_get("orders", auto_ack=True)
    channel.basic_nack(channel.basic_get("orders")[0].delivery_tag)
    channel.basic_reject(channel.basic_get("orders")[0].delivery_tag, requeue=False)
    channel.queue_declare("empty")
    channel.basic_get("empty")
    other: Any = connection.channel()
    other.basic_qos(prefetch_count=1)
    delivered: list[Any] = []
    other.basic_consume("orders", lambda *parts: delivered.append(parts))
    while not delivered:
        connection.process_data_events(1)
    try:
        yield
    finally:
        connection.close()


def samples(text: str) -> dict[str, list[Sample]]:
    """Return the samples of a scrape by their names."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def described(text: str) -> dict[str, dict[str, Any]]:
    """Return the type and the labels of each metric of a scrape."""
    found: dict[str, dict[str, Any]] = {}
    for family in text_string_to_metric_families(text):
        labels = sorted({label for sample in family.samples for label in sample.labels})
        for sample in family.samples:
            found[sample.name] = {"type": family.type, "labels": labels}
    return found
