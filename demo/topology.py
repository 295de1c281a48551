"""The exchange, the queues and the bindings of the plan, declared and examined with pika."""

from collections.abc import Sequence

import pika

from demo.ledger import Address
from demo.pika_client import parameters
from demo.plan import EXCHANGE, QueuePlan


def declare(address: Address, plan: Sequence[QueuePlan]) -> None:
    """Declare the durable exchange, queues and bindings, after deleting those of an earlier run."""
    with pika.BlockingConnection(parameters(address, "demo topology")) as connection:
        channel = connection.channel()
        channel.exchange_delete(EXCHANGE)
        channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
        for queue in plan:
            channel.queue_delete(queue.name)
            channel.queue_declare(queue.name, durable=True)
            for binding_key in queue.binding_keys:
                channel.queue_bind(queue.name, EXCHANGE, routing_key=binding_key)


def messages_left(address: Address, plan: Sequence[QueuePlan]) -> list[int]:
    """Return how many ready messages the broker still has in each queue."""
    with pika.BlockingConnection(parameters(address, "demo topology")) as connection:
        channel = connection.channel()
        return [channel.queue_declare(queue.name, passive=True).method.message_count for queue in plan]


def delete(address: Address, plan: Sequence[QueuePlan]) -> None:
    """Delete the topology of the run in a broker that keeps running."""
    with pika.BlockingConnection(parameters(address, "demo topology")) as connection:
        channel = connection.channel()
        for queue in plan:
            channel.queue_delete(queue.name)
        channel.exchange_delete(EXCHANGE)
