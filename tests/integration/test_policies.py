"""Policies on existing queues and exchanges while messages flow."""

from __future__ import annotations

from pathlib import Path

import aio_pika
import pytest
from pamqp.commands import Basic

from broker.core.policy.policy import Policy
from tests.in_process import client_of, queue_of, running_broker


def message(body: bytes) -> aio_pika.Message:
    """Return a persistent message."""
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


async def test_a_limit_holds_for_publishes_that_were_cached_before_it_came(tmp_path: Path) -> None:
    """A new policy ends the cached publish path of known routes, and deleting the policy restores it."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        policies = broker.engines["/"].vhost.policies
        await channel.declare_queue("q", durable=True)
        for _ in range(5):
            await channel.default_exchange.publish(message(b"before"), "q")
        policies.set(Policy("p", "^q$", "queues", {"max-length": 2, "overflow": "reject-publish"}))
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await channel.default_exchange.publish(message(b"too much"), "q")
        policies.clear("p")
        await channel.default_exchange.publish(message(b"after"), "q")
        assert queue_of(broker, "q").ready == 6


async def test_dead_letters_go_where_a_policy_says(tmp_path: Path) -> None:
    """A message that is rejected after the policy was set goes to the policy's dead-letter exchange."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await channel.declare_queue("q", durable=True)
        await channel.declare_queue("dead", durable=True)
        await channel.default_exchange.publish(message(b"bad"), "q")
        definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
        broker.engines["/"].vhost.policies.set(Policy("p", "^q$", "queues", definition))
        found = await queue.get()
        await found.reject(requeue=False)
        await channel.declare_queue("dead", durable=True, passive=True)
        assert (queue_of(broker, "q").ready, queue_of(broker, "dead").ready) == (0, 1)


async def test_an_alternate_of_a_policy_takes_what_was_unroutable_before(tmp_path: Path) -> None:
    """Repeated publishes are returned, then delivered by the policy's alternate exchange, then returned."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        policies = broker.engines["/"].vhost.policies
        queue = await channel.declare_queue("q")
        await queue.bind("amq.fanout")
        exchange = await channel.declare_exchange("x", "direct")

        async def arrives() -> bool:
            return isinstance(await exchange.publish(message(b"m"), "k", mandatory=True), Basic.Ack)

        assert [await arrives() for _ in range(3)] == [False] * 3
        policies.set(Policy("p", "^x$", "exchanges", {"alternate-exchange": "amq.fanout"}))
        assert await arrives()
        assert queue_of(broker, "q").ready == 1
        policies.clear("p")
        assert not await arrives()
