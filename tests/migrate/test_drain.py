"""Draining a queue: complete, in order, and safe to stop at every step."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aio_pika
import pytest

from broker.client.address import AmqpAddress
from broker.migrate import link
from broker.migrate.drain import Drain, own_name
from broker.migrate.link import MigrationFault
from broker.testing import Broker

MESSAGES = 7
BATCH = 3


class Stopped(Exception):
    """Ends a drain as a kill would: its sockets close and nothing more is sent."""


class Killer:
    """Counts the steps of a drain and ends it at one of them."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.step = ""

    def __call__(self, step: str) -> None:
        self.step = step
        self.left -= 1
        if not self.left:
            raise Stopped


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each publish leave by itself, so that a stop finds some of a batch at the target."""
    monkeypatch.setattr(link, "FLUSH_BYTES", 0)


@asynccontextmanager
async def channel_of(broker: Broker) -> AsyncIterator[Any]:
    """Yield a channel with confirms."""
    connection = await aio_pika.connect(broker.url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def fill(source: Broker, target: Broker, messages: list[aio_pika.Message], **arguments: Any) -> None:
    """Declare the queue at both brokers, and publish messages at the source."""
    for broker in (source, target):
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue("work", durable=True, arguments=arguments)
            exchange = await channel.declare_exchange("orders", "topic", durable=True)
            await queue.bind(exchange, "order.#")
            for number, message in enumerate(messages if broker is source else []):
                await exchange.publish(message, f"order.{number}")
    await source.idle()


def bodies(broker: Broker) -> list[bytes]:
    """Return the bodies in the queue."""
    return [message.body for message in broker.queue("work").messages]


def marked(source: Broker) -> int:
    """Return how many messages the source marks as possibly in both."""
    if own_name("work") not in source.queues():
        return 0
    return sum(len(json.loads(one.body)["in_flight"]) for one in source.queue(own_name("work")).messages)


async def keep(_message: Any) -> None:
    """Take a message and settle nothing."""


def drain_of(source: Broker, target: Broker, **options: Any) -> Drain:
    """Return a drain of the queue in small batches."""
    addresses = AmqpAddress.parse(source.url), AmqpAddress.parse(target.url)
    return Drain(*addresses, "work", batch_messages=BATCH, **options)


def numbered(prefix: str = "") -> list[aio_pika.Message]:
    """Return persistent messages with different bodies."""
    return [aio_pika.Message(f"{prefix}{number}".encode(), delivery_mode=2) for number in range(MESSAGES)]


async def test_all_messages_arrive_as_they_were() -> None:
    """Order, routing key, headers, x-death, priority, persistence and the other properties are those of the source."""
    death: list[Any] = [{"queue": "old", "reason": "rejected", "count": 3, "exchange": "e", "routing-keys": ["k"]}]
    messages = [
        aio_pika.Message(
            b"%d" % number,
            headers={"n": number, "x-death": death, "x-first-death-queue": "old"},
            priority=number,
            delivery_mode=1 + number % 2,
            message_id=f"m{number}",
            content_type="text/plain",
        )
        for number in range(MESSAGES)
    ]
    async with Broker() as source, Broker() as target:
        await fill(source, target, messages, **{"x-max-priority": 3})
        before = source.queue("work").messages
        drain = drain_of(source, target)
        await drain.run()
        after = target.queue("work").messages
        assert (drain.moved, drain.doubtful, drain.in_flight) == (MESSAGES, 0, 0)
        for old, new in zip(before, after, strict=True):
            assert (old.body, old.routing_key, old.headers, old.properties) == (
                new.body, new.routing_key, new.headers, new.properties,
            )  # fmt: skip
        assert source.queues() == target.queues() == ["work"]
        assert own_name("work") not in target.exchanges()


@pytest.mark.parametrize("equal", [False, True], ids=["different", "equal"])
async def test_a_drain_that_stops_at_any_step_loses_and_repeats_nothing(equal: bool) -> None:
    """At each step every message is at the source, at the target, or at both and marked; another run settles it."""
    messages = numbered() if not equal else [aio_pika.Message(b"tick", delivery_mode=2) for _ in range(MESSAGES)]
    expected = sorted(message.body for message in messages)
    steps = set()
    for at in count(1):
        async with Broker() as source, Broker() as target:
            await fill(source, target, messages)
            killer = Killer(at)
            try:
                await drain_of(source, target, step_done=killer).run()
            except Stopped:
                steps.add(killer.step)
                await source.idle()
                await target.idle()
                there, here = bodies(source), bodies(target)
                assert len(there) + len(here) >= MESSAGES, killer.step
                assert len(there) + len(here) - MESSAGES <= marked(source), killer.step
                drain = drain_of(source, target)
                await drain.run()
                assert not drain.in_flight
            else:
                break
            assert not bodies(source)
            assert sorted(bodies(target)) == expected, (killer.step, at)
            if not equal:
                assert bodies(target) == expected, (killer.step, at)
    assert steps == {"taken", "marker sent", "committed", "published", "confirmed", "marker deleted"}


async def test_a_message_that_overtakes_after_a_stop_is_not_taken_for_another() -> None:
    """A message of higher priority, published between two runs, comes first and gets a number of its own."""
    async with Broker() as source, Broker() as target:
        await fill(source, target, numbered(), **{"x-max-priority": 5})
        with pytest.raises(Stopped):
            await drain_of(source, target, step_done=Killer(5)).run()
        await source.idle()
        async with channel_of(source) as channel:
            await channel.default_exchange.publish(aio_pika.Message(b"urgent", priority=5, delivery_mode=2), "work")
        await source.idle()
        await drain_of(source, target).run()
        assert sorted(bodies(target)) == sorted([b"urgent", *(message.body for message in numbered())])


async def test_what_the_target_refuses_stays_at_the_source() -> None:
    """A full queue ends the drain with a reason, and no message is lost."""
    async with Broker() as source, Broker() as target:
        await fill(source, target, numbered())
        async with channel_of(target) as channel:
            await channel.queue_delete("work")
            await channel.declare_queue(
                "work", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
            )
        with pytest.raises(MigrationFault, match="target refused a message: the queue is full"):
            await drain_of(source, target).run()
        await source.idle()
        assert {*bodies(source), *bodies(target)} == {message.body for message in numbered()}


async def test_a_queue_that_the_target_does_not_have_is_left() -> None:
    """The reason says what to do."""
    async with Broker() as source, Broker() as target:
        await fill(source, target, numbered())
        async with channel_of(target) as channel:
            await channel.queue_delete("work")
        with pytest.raises(MigrationFault, match="no such queue: import the definitions"):
            await drain_of(source, target).run()
        assert len(bodies(source)) == MESSAGES


async def test_consumers_at_the_source_are_named() -> None:
    """Consumers would take messages out of order, so the drain begins only if the caller says so."""
    async with Broker() as source, Broker() as target:
        await fill(source, target, numbered())
        async with channel_of(source) as channel:
            await channel.set_qos(prefetch_count=1)
            queue = await channel.get_queue("work")
            await queue.consume(keep)
            with pytest.raises(MigrationFault, match="has consumers at the source"):
                await drain_of(source, target).run()
        await source.idle()
        assert len(bodies(source)) == MESSAGES


async def test_messages_that_have_not_returned_stay_marked() -> None:
    """A source that has not noticed the end of an earlier run still holds its messages: the next run settles them."""
    async with Broker() as source, Broker() as target:
        await fill(source, target, numbered())
        with pytest.raises(Stopped):
            await drain_of(source, target, step_done=Killer(5)).run()
        await source.idle()
        async with channel_of(source) as channel:
            await (await channel.get_queue("work")).consume(keep)
            await source.idle()
            drain = drain_of(source, target, patience_s=0.1, beside_consumers=True)
            await drain.run()
            assert (drain.moved, drain.in_flight, marked(source)) == (0, BATCH, BATCH)
        await source.idle()
        drain = drain_of(source, target)
        await drain.run()
        assert (drain.moved, drain.returned, drain.in_flight) == (MESSAGES, BATCH, 0)
        assert bodies(target) == [message.body for message in numbered()]


@pytest.mark.parametrize("at", range(1, 9))
async def test_a_drain_may_stop_again_while_it_resumes(at: int) -> None:
    """The second run stops before all messages that were in flight have returned; they keep their numbers."""
    async with Broker() as source, Broker() as target:
        await fill(source, target, numbered())
        with pytest.raises(Stopped):
            await drain_of(source, target, step_done=Killer(7)).run()
        await source.idle()
        assert marked(source) == BATCH == len(bodies(target))
        again = drain_of(source, target, step_done=Killer(at))
        again._batch_messages = 1
        with pytest.raises(Stopped):
            await again.run()
        await source.idle()
        await drain_of(source, target).run()
        assert bodies(target) == [message.body for message in numbered()]
