"""The counters of messages: each operation of a client counts once, wherever it is counted, and nothing falls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractQueue
from aio_pika.exceptions import DeliveryError

from broker.core.session.channel import SessionOfChannel
from broker.core.statistics.vhost_tally import NO_MESSAGES, MessageCounts
from broker.server import BrokerServer
from broker.store.damage import CorruptStore
from broker.vhosts.broker_statistics import BrokerStatistics
from tests.deadline import wait_until_async
from tests.in_process import queue_of, running_broker


def since(now: MessageCounts, before: MessageCounts) -> dict[str, int]:
    """Return what has grown, by name."""
    return {name: late - early for name, late, early in zip(now._fields, now, before, strict=True) if late != early}


@asynccontextmanager
async def statistics_of(folder: Path) -> AsyncIterator[tuple[BrokerServer, BrokerStatistics]]:
    """Yield a broker and its statistics."""
    async with running_broker(folder) as broker:
        yield broker, BrokerStatistics(broker.vhosts, broker.clients.usage)


@asynccontextmanager
async def connected(broker: BrokerServer, vhost: str = "") -> AsyncIterator[Any]:
    """Yield a connection to a vhost."""
    connection: Any = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/{vhost}")
    try:
        yield connection
    finally:
        await connection.close()


def session_of(broker: BrokerServer) -> SessionOfChannel:
    """Return the session of the only channel of the broker."""
    (session,) = broker.listener.sessions()
    (channel,) = session.connection.channels.values()
    return cast("SessionOfChannel", channel.session)


async def publish(channel: AbstractChannel, key: str, *, exchange: str = "", times: int = 1, **options: Any) -> None:
    """Publish messages of ten octets and wait for their confirms, if the channel has them."""
    target = await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
    message = aio_pika.Message(b"0123456789", **options.pop("properties", {}))
    await asyncio.gather(*[target.publish(message, key, **options) for _ in range(times)])


async def publish_plainly(channel: AbstractChannel) -> None:
    """Publish without anything that needs a detailed check."""
    await publish(channel, "q", times=3, mandatory=False)


async def publish_in_detail(channel: AbstractChannel) -> None:
    """Publish with a property that needs a detailed check."""
    await publish(channel, "q", times=3, properties={"expiration": 60})


async def publish_to_two(channel: AbstractChannel) -> None:
    """Publish to an exchange with two queues."""
    await publish(channel, "", exchange="amq.fanout", times=3)


async def publish_to_nobody(channel: AbstractChannel) -> None:
    """Publish to an exchange that leads nowhere with this key."""
    await publish(channel, "nobody", exchange="amq.direct", times=3, mandatory=False)


async def publish_by_turns(channel: AbstractChannel) -> None:
    """Publish at once with several keys, of which one leads nowhere."""
    keys = ("q", "nobody", "q", "both", "both", "q")
    await asyncio.gather(*[publish(channel, key, exchange="amq.direct", mandatory=False) for key in keys])


async def publish_to_nobody_in_detail(channel: AbstractChannel) -> None:
    """Publish with an expiration where no queue is."""
    await publish(channel, "nobody", exchange="amq.direct", mandatory=False, properties={"expiration": 60})


async def publish_and_get_it_back(channel: AbstractChannel) -> None:
    """Publish a mandatory message that no queue gets."""
    await publish(channel, "nobody", exchange="amq.direct", mandatory=True)


async def publish_numbered(channel: AbstractChannel) -> None:
    """Publish with the numbers of a producer, one of them twice."""
    for sequence in (1, 2, 2):
        headers = {"x-producer": "p", "x-seq": sequence}
        await publish(channel, "q", mandatory=False, properties={"headers": headers})


async def publish_to_a_full_queue(channel: AbstractChannel) -> None:
    """Publish what the queue refuses."""
    with pytest.raises(DeliveryError):
        await publish(channel, "full")


RECEIVED = {"publish": 3, "publish_confirm": 3, "confirm": 3}
SIX = {"publish": 6, "publish_confirm": 6, "confirm": 6}
ONE = {"publish": 1, "publish_confirm": 1, "confirm": 1}


@pytest.mark.parametrize(
    ("act", "counted", "of_queue"),
    [
        (publish_plainly, RECEIVED | {"routed": 3}, {"publish": 3}),
        (publish_in_detail, RECEIVED | {"routed": 3}, {"publish": 3}),
        (publish_to_two, RECEIVED | {"routed": 6}, {"publish": 3}),
        (publish_to_nobody, RECEIVED | {"drop_unroutable": 3}, {}),
        (publish_by_turns, SIX | {"routed": 7, "drop_unroutable": 1}, {"publish": 5}),
        (publish_to_nobody_in_detail, ONE | {"drop_unroutable": 1}, {}),
        (publish_and_get_it_back, ONE | {"return_unroutable": 1}, {}),
        (publish_numbered, RECEIVED | {"routed": 2}, {"publish": 2}),
        (publish_to_a_full_queue, {"publish": 1, "publish_confirm": 1, "routed": 1}, {}),
    ],
)
async def test_a_publish_counts_once_in_each_place(
    tmp_path: Path,
    act: Callable[[AbstractChannel], Awaitable[None]],
    counted: dict[str, int],
    of_queue: dict[str, int],
) -> None:
    """Channel, vhost and broker count the same; the queue counts what entered it."""
    async with statistics_of(tmp_path) as (broker, statistics), connected(broker) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("q", durable=True)
        await queue.bind("amq.fanout")
        await queue.bind("amq.direct", "q")
        other = await channel.declare_queue("other")
        await other.bind("amq.fanout")
        for one in (queue, other):
            await one.bind("amq.direct", "both")
        await channel.declare_queue("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        await act(channel)
        for counts in (statistics.totals(), statistics.vhost("/"), statistics.channel(session_of(broker))):
            assert since(counts, NO_MESSAGES) == counted
        assert since(statistics.queue(queue_of(broker, "q")), NO_MESSAGES) == of_queue
        exchanges = [statistics.exchange(exchange) for exchange in broker.vhosts["/"].exchanges.values()]
        assert sum(exchange.publish_in for exchange in exchanges) in (counted["publish"], counted["publish"] - 1)
        assert sum(exchange.publish_out for exchange in exchanges) == counted.get("routed", 0)
        sizes = statistics.sizes()
        assert (sizes.counts[0], sum(sizes.counts)) == (counted["publish"], counted["publish"])
        assert sizes.total_bytes == 10 * counted["publish"]


async def consume(queue: AbstractQueue, count: int, *, no_ack: bool) -> list[Any]:
    """Return the next messages of a queue."""
    messages = []
    async with queue.iterator(no_ack=no_ack) as iterator:
        async for message in iterator:
            messages.append(message)
            if len(messages) == count:
                return messages
    return messages


async def test_a_delivery_and_an_ack_count_once_in_each_place(tmp_path: Path) -> None:
    """Deliveries, fetches, redeliveries and acknowledgements: channel, queue, vhost and broker count the same."""
    async with statistics_of(tmp_path) as (broker, statistics), connected(broker) as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue("q", durable=True)
        await publish(channel, "q", times=10, mandatory=False)
        session, held = session_of(broker), queue_of(broker, "q")
        before = NO_MESSAGES

        async def counts(**expected: int) -> None:
            nonlocal before
            wanted = {name: count for name, count in expected.items() if count}
            await wait_until_async(lambda: since(statistics.totals(), before) == wanted, "the counters")
            now = statistics.totals()
            assert statistics.vhost("/") == now == statistics.channel(session)
            stripped = {"routed": 0}
            assert statistics.queue(held)._replace(**stripped) == now._replace(**stripped)
            before = now

        await counts(publish=10, routed=10)
        assert before.deliver_get == 0
        first, second = await queue.get(), await queue.get()
        await queue.get(no_ack=True)
        await counts(get=2, get_no_ack=1)
        await second.ack()
        await first.nack(requeue=True)
        await counts(ack=1)
        await (await queue.get()).reject(requeue=False)
        await counts(get=1, redeliver=1)
        await channel.set_qos(2)
        got = await consume(queue, 2, no_ack=False)
        await got[1].ack(multiple=True)
        await wait_until_async(lambda: statistics.totals().ack - before.ack >= 2, "the counters")
        # The iterator had two more when it was cancelled, and gave them back.
        extra = statistics.totals().deliver - before.deliver - 2
        await counts(deliver=2 + extra, ack=2)
        await wait_until_async(lambda: held.unacked == 0, "the counters")
        left = held.ready
        await consume(queue, left, no_ack=True)
        await counts(deliver_no_ack=left, redeliver=extra)
        assert await queue.get(fail=False) is None
        await counts(get_empty=1)
        assert before.deliver_get == 2 + extra + left + 4


async def test_totals_do_not_fall_when_a_channel_a_queue_or_a_vhost_ends(tmp_path: Path) -> None:
    """Ended objects stay counted, as do those that opened and closed."""
    async with statistics_of(tmp_path) as (broker, statistics):
        await broker.administration.change(lambda draft: draft.add_vhost("crm", {}))
        await broker.administration.change(lambda draft: draft.permissions.set("guest", "crm", ".*", ".*", ".*"))
        async with connected(broker, "crm") as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q")
            await channel.declare_queue("q")
            await publish(channel, "q", times=4)
            await (await queue.get()).ack()
            await queue.delete(if_empty=False)
            await channel.declare_queue("deleted with the vhost")
            other = await connection.channel()
            await other.close()
        await wait_until_async(lambda: statistics.churn().connections_closed == 1, "the counters")
        expected = MessageCounts(publish=4, publish_confirm=4, confirm=4, routed=4, get=1, ack=1)
        assert statistics.totals() == expected
        await broker.administration.change(lambda draft: draft.drop_vhost("crm"))
        await wait_until_async(lambda: "crm" not in broker.engines, "the counters")
        assert statistics.totals() == expected
        assert sum(statistics.sizes().counts) == 4
        assert statistics.churn() == (1, 1, 2, 2, 3, 2, 2)


async def test_a_vhost_that_goes_offline_has_no_deleted_queues(tmp_path: Path) -> None:
    """Its queues are on disk, and come back once its files are repaired."""
    async with statistics_of(tmp_path) as (broker, statistics):
        vhost = await broker.administration.vhosts.add("crm")
        vhost.queues.declare("q", durable=True)
        broker.vhosts.take_offline("crm", CorruptStore(tmp_path, 1, 0, "of the test"))
        await wait_until_async(lambda: not vhost.queues, "the end of the vhost")
        assert statistics.churn().queues_deleted == 0


async def test_dead_letters_count_by_reason(tmp_path: Path) -> None:
    """A rejected message and one beyond the limit are dead letters of different reasons."""
    async with statistics_of(tmp_path) as (broker, statistics), connected(broker) as connection:
        channel = await connection.channel()
        into = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
        await channel.declare_queue("grave")
        queue = await channel.declare_queue("q", arguments={"x-max-length": 2, **into})
        await publish(channel, "q", times=5)
        await (await queue.get()).reject(requeue=False)
        await wait_until_async(lambda: queue_of(broker, "grave").ready == 4, "the counters")
        assert statistics.dead_letters() == {"rejected": 1, "expired": 0, "maxlen": 3, "delivery_limit": 0}
        assert statistics.queue(queue_of(broker, "grave")).publish == 4
        assert statistics.totals().publish == 5


async def test_a_transaction_counts_at_its_commit(tmp_path: Path) -> None:
    """Publishes of a transaction count as received at once, and as routed at the commit."""
    async with statistics_of(tmp_path) as (broker, statistics), connected(broker) as connection:
        channel = await connection.channel(publisher_confirms=False)
        await channel.declare_queue("q")
        async with channel.transaction():
            await publish(channel, "q", times=2, mandatory=False)
            await wait_until_async(lambda: statistics.totals().publish == 2, "the counters")
            assert statistics.totals().routed == 0
        assert since(statistics.totals(), NO_MESSAGES) == {"publish": 2, "routed": 2}
