"""Limits, expiry and dead letters of queues whose messages were paged out, and after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.server import BrokerServer
from broker.testing import VirtualClock
from tests.deadline import wait_until_async
from tests.in_process import client_of, queue_of, running_broker, timed_broker
from tests.raw_talk import page_out

BODY_BYTES = 400
COUNT = 1200  # of such bodies, in slots of a hundred
SMALL_SLOTS = {"window_messages": 100}


async def fill(channel: Any, queue: str, count: int = COUNT, **options: Any) -> None:
    """Publish numbered persistent messages and return when they are confirmed."""
    for start in range(0, count, 200):
        await asyncio.gather(
            *(
                channel.default_exchange.publish(
                    aio_pika.Message(b"%0*d" % (BODY_BYTES, number), delivery_mode=2, **options), queue
                )
                for number in range(start, min(start + 200, count))
            )
        )


async def until_ready(broker: BrokerServer, name: str, count: int) -> None:
    """Return when a queue has exactly this many ready messages."""
    await wait_until_async(lambda: queue_of(broker, name).ready == count, f"{count} messages in {name}")


async def numbers_in(channel: Any, name: str) -> list[int]:
    """Fetch everything from a queue and return the numbers."""
    queue = await channel.get_queue(name)
    found = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        found.append(int(message.body))
    return found


async def declare(channel: Any, name: str, **arguments: Any) -> Any:
    """Declare a durable queue with x- arguments, written with underscores."""
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return await channel.declare_queue(name, durable=True, arguments=named)


async def test_a_head_on_disk_is_dropped_into_the_dead_letter_exchange(tmp_path: Path) -> None:
    """A lower limit by a policy reads the oldest messages back and dead-letters each once, in order."""
    async with running_broker(tmp_path, slots=SMALL_SLOTS) as broker, client_of(broker) as channel:
        await declare(channel, "dead")
        await declare(channel, "q", dead_letter_exchange="", dead_letter_routing_key="dead", max_length=COUNT)
        await fill(channel, "q")
        page_out(broker, "q")
        await fill(channel, "q", 300)
        await until_ready(broker, "dead", 300)
        assert await numbers_in(channel, "dead") == list(range(300))
        assert await numbers_in(channel, "q") == [*range(300, COUNT), *range(300)]


async def test_messages_on_disk_expire(tmp_path: Path) -> None:
    """Expired messages on disk are read, dead-lettered once and removed, without a consumer."""
    async with timed_broker(tmp_path, slots=SMALL_SLOTS) as broker, client_of(broker.server) as channel:
        await declare(channel, "dead")
        await declare(channel, "q", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=2000)
        await fill(channel, "q")
        page_out(broker.server, "q")
        broker.clock.advance(1.999)
        await broker.idle()
        assert (broker.queue("q").ready, broker.queue("dead").ready) == (COUNT, 0)
        broker.clock.advance(0.001)
        await broker.idle()
        assert (broker.queue("q").ready, broker.queue("dead").ready) == (0, COUNT)
        assert await numbers_in(channel, "dead") == list(range(COUNT))


async def test_what_a_read_led_to_is_logged_without_further_traffic(tmp_path: Path) -> None:
    """The log record of a message that expires after its read is written without other traffic."""
    clock = VirtualClock()
    async with timed_broker(tmp_path, clock) as broker, client_of(broker.server) as channel:
        await declare(channel, "q")
        await fill(channel, "q", 5, expiration=2)
    clock.advance(2)
    async with timed_broker(tmp_path, clock) as broker:
        await broker.idle()
        assert broker.queue("q").ready == 0
        assert broker.server.engines["/"].reader.reads > 0


async def test_a_rejected_message_that_left_memory_is_dead_lettered(tmp_path: Path) -> None:
    """A rejected message that was paged out is read back and then dead-lettered."""
    async with running_broker(tmp_path, slots=SMALL_SLOTS) as broker, client_of(broker) as channel:
        await declare(channel, "dead")
        queue = await declare(channel, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
        await fill(channel, "q", 50)
        held = [await queue.get() for _ in range(50)]
        page_out(broker, "q")
        for message in held:
            await message.reject()
        await until_ready(broker, "dead", 50)
        assert await numbers_in(channel, "dead") == list(range(50))
        assert queue_of(broker, "q").unacked == 0


@pytest.mark.parametrize("expiration", [None, 2])
async def test_messages_expire_across_a_restart(tmp_path: Path, expiration: int | None) -> None:
    """Time passes during the downtime: messages expire in order, to the millisecond."""
    ttl = {"message_ttl": 2000} if expiration is None else {}
    clock = VirtualClock()
    async with timed_broker(tmp_path, clock) as broker, client_of(broker.server) as channel:
        await declare(channel, "q", **ttl)
        await fill(channel, "q", 5, expiration=expiration)
        clock.advance(1)
        await fill(channel, "q", 7, expiration=expiration)
    clock.advance(1)
    async with timed_broker(tmp_path, clock) as broker:
        await broker.idle()
        assert [int(message.body) for message in broker.queue("q").messages] == list(range(7))
        clock.advance(0.999)
        await broker.idle()
        assert broker.queue("q").ready == 7
        clock.advance(0.001)
        await broker.idle()
        assert broker.queue("q").ready == 0


async def test_a_limit_in_bytes_holds_after_a_restart(tmp_path: Path) -> None:
    """The sizes of recovered messages are measured, so the next publish drops as many as necessary."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await declare(channel, "q", max_length_bytes=10 * BODY_BYTES)
        await fill(channel, "q", 10)
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        await wait_until_async(
            lambda: queue_of(broker, "q").waiting_bytes == 10 * BODY_BYTES, "the sizes of the messages on disk"
        )
        await fill(channel, "q", 3)
        assert await numbers_in(channel, "q") == [*range(3, 10), *range(3)]


async def test_a_priority_queue_survives_a_restart(tmp_path: Path) -> None:
    """Every level survives in order, without the settled messages."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        queue = await declare(channel, "q", max_priority=3)
        for number in range(40):
            message = aio_pika.Message(b"%d" % number, delivery_mode=2, priority=number % 4)
            await channel.default_exchange.publish(message, "q")
        for _ in range(5):
            got = await queue.get()
            await got.ack()
        await declare(channel, "behind")
        await fill(channel, "behind", 3)
    expected = sorted(range(40), key=lambda number: (-(number % 4), number))[5:]
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        assert await numbers_in(channel, "q") == expected
        assert await numbers_in(channel, "behind") == [0, 1, 2]


async def test_a_dead_letter_that_was_found_by_a_delivery_is_written_while_nobody_says_anything(
    tmp_path: Path,
) -> None:
    """The expired message behind the head is written to disk in the next turn, without a further client request."""
    async with timed_broker(tmp_path) as timed, client_of(timed.server) as channel:
        broker = timed.server
        await declare(channel, "dead")
        queue = await channel.declare_queue(
            "q", exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        )
        for expiration in (None, 2):
            message = aio_pika.Message(b"", delivery_mode=2, expiration=expiration)
            await channel.default_exchange.publish(message, "q")
        timed.clock.advance(3)

        async def take(_message: object) -> None:
            """Ignore a message."""

        await queue.consume(take, no_ack=True)
        log = broker.engines["/"].store.log
        (transport,) = broker.listener.transports
        said = transport.connection.received
        await wait_until_async(
            lambda: queue_of(broker, "dead").ready == 1 and log.written == log.position, "the dead letter on disk"
        )
        assert transport.connection.received == said  # no heartbeat was needed either
