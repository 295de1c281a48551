"""The exchange, the queues and the bindings of the plan, declared and examined with pika."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel

from demo.entries import Entries
from demo.ledger import Address
from demo.pika_client import parameters
from demo.plan import EXCHANGE, QueuePlan


@contextmanager
def channel_to(address: Address) -> Iterator[BlockingChannel]:
    """Yield a channel of a connection of its own."""
    with pika.BlockingConnection(parameters(address, "demo topology")) as connection:
        yield connection.channel()


def declare(entries: Entries, plan: Sequence[QueuePlan], homes: Sequence[Address]) -> None:
    """Declare the durable exchange everywhere, queues and bindings, after deleting those of an earlier run."""
    for address in entries.brokers():
        with channel_to(address) as channel:
            channel.exchange_delete(EXCHANGE)
            channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
            for queue in _queues_at(address, plan, homes):
                channel.queue_delete(queue.name)
                channel.queue_declare(queue.name, durable=True)
                for binding_key in queue.binding_keys:
                    channel.queue_bind(queue.name, EXCHANGE, routing_key=binding_key)


def messages_left(entries: Entries, plan: Sequence[QueuePlan], homes: Sequence[Address]) -> list[int]:
    """Return how many ready messages are still in each queue."""
    counts: dict[str, int] = {}
    for address in entries.brokers():
        with channel_to(address) as channel:
            for queue in _queues_at(address, plan, homes):
                counts[queue.name] = channel.queue_declare(queue.name, passive=True).method.message_count
    return [counts[queue.name] for queue in plan]


def delete(entries: Entries, plan: Sequence[QueuePlan], homes: Sequence[Address]) -> None:
    """Delete the topology of the run in brokers that keep running."""
    for address in entries.brokers():
        with channel_to(address) as channel:
            for queue in _queues_at(address, plan, homes):
                channel.queue_delete(queue.name)
            channel.exchange_delete(EXCHANGE)


def _queues_at(address: Address, plan: Sequence[QueuePlan], homes: Sequence[Address]) -> Iterator[QueuePlan]:
    return (queue for queue, home in zip(plan, homes, strict=True) if home == address)
