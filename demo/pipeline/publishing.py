"""Publishes the flights to the exchange: two publishers, pika's and aio-pika's, each in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika

from demo.aio_pika_client import publish_with_aio_pika
from demo.flights import FlightsFile
from demo.ledger import SPAWN, Address, Count, Ledger
from demo.pika_client import parameters, publish_with_pika
from demo.plan import EXCHANGE

AIO_PART = 0.15  # a message costs six times pika's processor time; so both end at about the same time
SHOW_EVERY_S = 2.0
LOOK_EVERY_S = 0.1
QUEUE = "everything"  # the publishers require a queue for every flight, and a tap is none


class PublishingFailed(Exception):
    """A publisher ended before all its flights were confirmed."""


def declare(address: Address) -> None:
    """Declare the durable topic exchange, and an ordinary queue that also receives every flight."""
    with pika.BlockingConnection(parameters(address, "demo topology")) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
        channel.queue_declare(QUEUE, durable=True)
        channel.queue_bind(QUEUE, EXCHANGE, "#")


def publish(address: Address, flights: FlightsFile, checksums: list[int], tell: Callable[[str], None]) -> float:
    """Publish every flight until it is confirmed; return the duration in seconds. Raises: PublishingFailed."""
    ledger = Ledger(flights.rows, 1, 2, checksums)
    ledger.broker_started()
    cut = flights.rows - int(flights.rows * AIO_PART)
    works: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (publish_with_pika, (ledger, 0, address, flights, 0, cut)),
        (publish_with_aio_pika, (ledger, 1, address, flights, cut, flights.rows)),
    ]
    processes = [SPAWN.Process(target=work, args=arguments, daemon=True) for work, arguments in works]
    began_s = shown_s = time.monotonic()
    try:
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            time.sleep(LOOK_EVERY_S)
            if any(process.exitcode for process in processes):
                raise PublishingFailed("a publisher ended with an error; it is above")
            if time.monotonic() - shown_s >= SHOW_EVERY_S:
                shown_s = time.monotonic()
                confirmed = ledger.total(Count.CONFIRMED)
                tell(f"{confirmed:,} of {flights.rows:,} flights confirmed")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    if bytes(ledger.confirmed).count(0):
        raise PublishingFailed("some flights were never confirmed")
    return time.monotonic() - began_s


def drain(address: Address, queue: str) -> list[tuple[str, bytes, str | None, int]]:
    """Consume all messages of a queue and return (routing key, body, message id, delivery mode), in order."""
    found: list[tuple[str, bytes, str | None, int]] = []
    with pika.BlockingConnection(parameters(address, "demo reader")) as connection:
        channel = connection.channel()
        left = channel.queue_declare(queue, passive=True).method.message_count
        if left:
            for method, properties, body in channel.consume(queue, auto_ack=True):
                found.append((method.routing_key, body, properties.message_id, properties.delivery_mode))
                if len(found) == left:
                    break
            channel.cancel()
    return found


def make_queue(address: Address, exchange: str, queue: str) -> None:
    """Declare a fanout exchange with one durable queue."""
    with pika.BlockingConnection(parameters(address, "demo topology")) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "")
