"""Streams of the overlay in a real broker: what other brokers want is numbered, recorded, read and trimmed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aio_pika
import pytest
from aiormq.exceptions import ChannelAccessRefused

from broker.core.policy.policy import Policy
from broker.overlay.packets import Data, VectorChange
from broker.overlay_node.exchange_log import FETCH_MESSAGES, SLOTS_AT_ONCE, ExchangeLog
from broker.testing import Broker
from tests import raw_talk
from tests.deadline import wait_until_async
from tests.in_process import timed_broker
from tests.overlay_vhosts import ALL, crashed, read, recover, told
from tests.raw_talk import connect, numbered, talk
from tests.tap_files import channel_of, publish


async def level_of(broker: Broker, exchange: str, wanted: Iterable[str] = ("#",)) -> ExchangeLog:
    """Return the stream of an exchange, with an outlet for some patterns."""
    vhost = broker.server.vhosts["/"]
    queue = vhost.queues.own_stream(exchange)
    if exchange in vhost.exchanges:
        vhost.exchanges[exchange].open_outlet(queue)
        vhost.exchanges[exchange].forward(wanted)
    return await recover(ExchangeLog(vhost, queue))


def first_number(log: ExchangeLog) -> int:
    """Return the first number of a stream above the trimmed ones, that after its last if there is none."""
    slots = log.queue.level.manager.slots.values()
    numbers = (slot.first + index for slot in slots for index in slot.acks.unsettled(0, slot.length))
    return next((number for number in numbers if number > log.trimmed), log.last + 1)


@pytest.mark.parametrize(
    ("type", "arguments", "binding"),
    [
        ("topic", {}, "none"),
        ("topic", {"x-topic-dialect": "mqtt"}, "none"),
        ("direct", {}, "none"),
        ("fanout", {}, ""),
        ("headers", {}, ""),
        ("x-consistent-hash", {}, "3"),
        ("x-consistent-hash", {"hash-header": "h"}, "3"),
        ("x-delayed-message", {"x-delayed-type": "topic"}, "none"),
    ],
)
async def test_stream_has_what_is_wanted_of_every_type_of_exchange(
    tmp_path: Path, type: str, arguments: dict[str, Any], binding: str
) -> None:
    """Transient messages too are in it, in order, byte for byte, and are there after kill -9."""
    async with timed_broker(tmp_path / "d") as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", type, durable=True, arguments=arguments)
        await (await channel.declare_queue("q", durable=True)).bind("x", binding)
        log = await level_of(broker, "x", ["a.*", "#.c"])
        keys = ["a.b", "b", "a.b.c", "c", "$a", "a"] * 2
        await publish(exchange, keys, headers={"n": 1, "deep": {"a": [1, None]}})
        await publish(exchange, keys, persistent=False, correlation_id="7")
        wanted = [one for one in broker.published if one.routing_key in ("a.b", "a.b.c", "c")]
        elements = await read(log)
        assert [(one.number, one.key, one.content) for one in elements if isinstance(one, Data)] == [
            (number, one.routing_key, one.header + one.body) for number, one in enumerate(wanted, 1)
        ]
        assert len(elements) == len(wanted) == 12
        async with crashed(broker, tmp_path) as again:
            assert await read(await level_of(again, "x")) == elements


async def test_confirms_and_returns_count_other_brokers_as_queues(tmp_path: Path) -> None:
    """A mandatory message that only another broker wants is routed; one that no one wants comes back."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x", ["a.*"])
        assert await publish(exchange, ["a.b", "b"], mandatory=True) == [312]
        vhost = broker.server.vhosts["/"]
        vhost.exchanges["x"].forward(["b"], ["a.*"])
        assert await publish(exchange, ["a.b", "b"], mandatory=True) == [312]
        assert told(await read(log)) == [(1, "a.b"), (2, "b")]


async def test_clients_cannot_use_the_stream_queue(tmp_path: Path) -> None:
    """It is listed, and every method on it is refused; no message is published to its name, no policy holds.

    An expiration of a message holds.
    """
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x")
        policy = Policy(name="p", pattern=".*", apply_to="all", definition={"max-length": 1, "message-ttl": 1})
        broker.server.vhosts["/"].policies.set(policy)
        await publish(exchange, ["a", "b"])
        await publish(exchange, ["c"], expiration=1)
        broker.clock.advance(5)
        connection = await aio_pika.connect(broker.url)
        name = log.queue.name
        for use in ("get", "consume", "purge", "delete", "bind", "declare"):
            other = await connection.channel()
            queue = await other.get_queue(name, ensure=False)
            uses: dict[str, Callable[[], Awaitable[Any]]] = {
                "get": partial(queue.get, fail=False),
                "consume": partial(queue.consume, AsyncMock()),
                "purge": queue.purge,
                "delete": queue.delete,
                "bind": partial(queue.bind, "x", "#"),
                "declare": partial(other.declare_queue, name, durable=True),
            }
            with pytest.raises(ChannelAccessRefused, match="amq"):
                await uses[use]()
        await connection.close()
        assert await publish(channel.default_exchange, [name], mandatory=True) == [312]
        assert told(await read(log)) == [(1, "a"), (2, "b")]
        assert broker.queue(name).ready == 3


async def test_reading_goes_from_any_number_through_memory_and_disk(tmp_path: Path) -> None:
    """Slots in memory, slots on disk and limits of bytes give the same elements; nothing is settled."""
    async with timed_broker(tmp_path / "d", slots={"window_messages": 10}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x")
        keys = [f"k.{number}" for number in range(1, 96)]
        await publish(exchange, keys)
        whole = list(enumerate(keys, 1))
        assert told(await read(log)) == whole
        async with crashed(broker, tmp_path) as again:
            log = await level_of(again, "x")
            for first, last in ((1, 95), (7, 33), (50, 50), (95, 95), (90, 95), (96, 95)):
                for limit_bytes in (1, 100, ALL):
                    assert told(await read(log, first, last, limit_bytes)) == whole[first - 1 : last]
            assert log.queue.ready == 95
            log.trim(42)
            assert (first_number(log), log.last, log.queue.ready) == (43, 95, 53)
            assert told(await read(log)) == whole[42:]


async def test_a_message_that_expired_while_it_waited_is_left_out(tmp_path: Path) -> None:
    """Its number is silent, in memory and on disk. One that is too short for any link still gets its chance."""
    async with timed_broker(tmp_path / "d", slots={"window_messages": 2}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x")
        for expiration_s in (0, 0.7, None, 5, 0.7):
            await publish(exchange, [f"e.{expiration_s}"], expiration=expiration_s)
        broker.clock.advance(0.05)
        assert [number for number, _ in told(await read(log))] == [1, 2, 3, 4, 5]
        broker.clock.advance(2)
        assert told(await read(log)) == [(3, "e.None"), (4, "e.5")]
        async with crashed(broker, tmp_path) as again:
            assert told(await read(await level_of(again, "x"))) == [(3, "e.None"), (4, "e.5")]


async def test_more_than_one_read_fetches_comes_in_order(tmp_path: Path) -> None:
    """A stretch on disk that is longer than one fetch is read piece by piece, from its first number on."""
    bodies = numbered(FETCH_MESSAGES + 200, 10)
    async with timed_broker(tmp_path / "d") as broker, channel_of(broker) as channel:
        await channel.declare_exchange("x", "topic", durable=True)
        await level_of(broker, "x")
        with await talk(broker.server, connect, broker.server) as client:
            await talk(broker.server, lambda: raw_talk.publish(client, "k", bodies, exchange="x"))
        async with crashed(broker, tmp_path) as again:
            log = await level_of(again, "x")
            for first in (1, 150):
                elements = await read(log, first)
                assert told(elements) == [(number, "k") for number in range(first, len(bodies) + 1)]
                assert [one.content[-10:] for one in elements if isinstance(one, Data)] == bodies[first - 1 :]


async def test_numbers_go_on_and_the_last_vector_is_found_after_kill_9(tmp_path: Path) -> None:
    """The vector in force where the stream was trimmed stays, and those behind it; numbers never come back."""
    async with timed_broker(tmp_path / "d", slots={"window_messages": 4}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x")
        vectors: list[dict[str, int]] = [{}]
        for number in range(1, 5):
            vectors.append({**vectors[-1], f"sb{number}": number})
            log.append_vector(vectors[-2], vectors[-1], 7)
            await publish(exchange, [f"k.{number}"] * 4)
        changes = [1, 6, 11, 16]
        assert [one.number for one in await read(log) if isinstance(one, VectorChange)] == changes
        assert [log.change_at(number) for number in (1, 2, 6, 7, 20, 99)] == [0, 1, 1, 6, 16, 16]
        for upto, first, kept in ((0, 1, changes), (9, 10, changes[1:]), (10, 11, [6, *changes[2:]]), (20, 21, [16])):
            log.trim(upto)
            assert (first_number(log), log.last) == (first, 20)
            broker.server.turn.schedule()
            await broker.server.vhosts.drain()
            async with crashed(broker, tmp_path) as again:
                found = await level_of(again, "x")
                assert [one.number for one in await read(found) if isinstance(one, VectorChange)] == kept
                assert found.changes[-1] == VectorChange(16, vectors[3], vectors[4], 7)
                assert (first_number(found), found.last) == (first, 20)
                async with channel_of(again) as other:
                    await publish(await other.get_exchange("x"), ["new"])
                assert told(await read(found, 21)) == [(21, "new")]
                assert found.append_vector({}, {}, 7) == 22
                assert [found.change_at(number) for number in (17, 22, 23)] == [16, 16, 22]


async def test_what_waits_for_the_next_message_goes_right_before_it(tmp_path: Path) -> None:
    """Once, also in the log, whatever way it comes: in a run, to many queues, transient, numbered, transacted, dead."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        queue = await channel.declare_queue("q", durable=True)
        short: dict[str, Any] = {"x-message-ttl": 0, "x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "dead"}
        await channel.declare_queue("short", durable=True, arguments=short)
        log = await level_of(broker, "x", ["k.#", "dead"])
        times = iter(range(1, 100))

        def wait() -> None:
            time = next(times)
            log.before_next(lambda: void(log.append_vector({"sb": time - 1}, {"sb": time}, 7)))

        wait()
        await publish(exchange, ["other"])
        await publish(exchange, ["k"] * 3)
        await queue.bind("x", "#")
        wait()
        await publish(exchange, ["k.wide"] * 2)
        wait()
        await publish(exchange, ["k.transient"], persistent=False)
        wait()
        await publish(exchange, ["k.numbered"], headers={"x-producer": "p", "x-seq": 1})
        wait()
        await publish(channel.default_exchange, ["short"])
        wait()
        connection = await aio_pika.connect(broker.url)
        transacted = await connection.channel(publisher_confirms=False)
        async with transacted.transaction():
            await publish(await transacted.get_exchange("x"), ["k.tx"] * 2)
        await connection.close()
        await broker.idle()
        keys = ["k", "k", "k", "k.wide", "k.wide", "k.transient", "k.numbered", "dead", "k.tx", "k.tx"]
        before = {0, 3, 5, 6, 7, 8}
        expected = [name for place, key in enumerate(keys) for name in (["vector"] * (place in before) + [key])]
        assert told(await read(log)) == list(enumerate(expected, 1))
    async with timed_broker(tmp_path) as broker:
        assert told(await read(await level_of(broker, "x", ["k.#", "dead"]))) == list(enumerate(expected, 1))


def void(_number: int) -> None:
    """Drop a number."""


async def test_trimming_goes_slot_by_slot_and_gives_the_log_back(tmp_path: Path) -> None:
    """A long front goes over several turns; then only the open slot is there."""
    async with timed_broker(tmp_path, slots={"window_messages": 2}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x")
        await publish(exchange, ["k"] * (SLOTS_AT_ONCE * 6 + 1))
        log.trim(log.last - 1)
        assert first_number(log) == log.last
        await broker.idle()
        assert log.queue.ready == 1
        assert len(log.queue.level.manager.slots) == 1
        log.trim(ALL)
        assert (first_number(log), log.queue.ready) == (log.last + 1, 0)


async def test_limits_force_messages_out_and_the_stream_remembers_it(tmp_path: Path) -> None:
    """Too many bytes or too old: the oldest go, in memory and on disk, and `lost` says so after kill -9."""
    async with timed_broker(tmp_path / "d", slots={"window_messages": 4}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x")
        assert log.enforce(0, 0) == log.lost == 0
        log.append_vector({}, {"sb": 1}, 7)
        await publish(exchange, ["old"] * 9)
        broker.clock.advance(60)
        await publish(exchange, ["new"] * 4)
        assert log.enforce(ALL, 61_000) == log.enforce(ALL, ALL) == 0
        async with crashed(broker, tmp_path) as again:
            found = await level_of(again, "x")

            async def dropped() -> bool:
                found.enforce(ALL, 59_000)
                return found.lost == 8

            await wait_until_async(dropped, "the slots whose last message is old")
            assert told(await read(found)) == [
                (1, "vector"),
                (9, "old"),
                (10, "old"),
                *((n, "new") for n in range(11, 15)),
            ]
        assert log.enforce(ALL, 59_000) == log.lost == 10
        assert told(await read(log)) == [(1, "vector"), *((number, "new") for number in range(11, 15))]
        assert log.enforce(0, ALL) == 14
        await broker.server.vhosts.drain()
        async with crashed(broker, tmp_path) as again:
            found = await level_of(again, "x")
            assert (found.lost, first_number(found), found.last) == (14, 15, 14)
            assert found.changes[-1] == VectorChange(1, {}, {"sb": 1}, 7)


async def test_reader_hears_of_new_messages_once(tmp_path: Path) -> None:
    """One call for all messages until it rests."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        log = await level_of(broker, "x")
        heard: list[int] = []
        log.queue.on_grown(lambda queue: heard.append(queue.ready))
        await publish(exchange, ["a", "b"])
        assert heard == [1]
        log.queue.rearm()
        await publish(exchange, ["c"], persistent=False)
        assert heard == [1, 3]
