"""Taps with real clients, on real files: the messages that they copy, and what clients see of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aiormq.exceptions import ChannelAccessRefused

from broker.core.policy.policy import Policy
from broker.slot_files.slot_file import PERSISTENT
from tests.in_process import timed_broker
from tests.tap_files import bodies_of, channel_of, publish, rows_of, there


async def test_a_tap_has_exactly_the_matching_messages_byte_for_byte(tmp_path: Path) -> None:
    """A tap copies persistent and transient messages in order, with unchanged properties."""
    async with timed_broker(tmp_path, taps={"window_messages": 40}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("t", "topic", durable=True)
        await broker.server.taps.add("/", "t", "stock.*.nyse")
        keys = [f"{head}.{number % 7}.{tail}" for number in range(40) for head, tail in (("stock", "nyse"), ("b", "c"))]
        for place, key in enumerate(keys):
            message = aio_pika.Message(
                bytes(place % 300),
                headers={"n": place, "deep": {"a": [1, "x", None]}},
                content_type="application/x",
                correlation_id=f"c{place}",
                delivery_mode=1 + place % 3 % 2,
                expiration=60 if place % 5 == 0 else None,
            )
            await exchange.publish(message, key, mandatory=False)
        assert await broker.server.taps.seal() == len(there(broker.server.taps))
        rows = rows_of(broker.server.taps, "t")
        sent = [one for one in broker.published if one.routing_key.startswith("stock.")]
        assert len(sent) == 40
        assert [(row.exchange.decode(), row.key.decode(), row.header, row.body) for row in rows] == [
            (one.exchange, one.routing_key, one.header, one.body) for one in sent
        ]
        assert [row.message_id for row in rows] == list(range(1, 41))
        assert {row.flags for row in rows} == {0, PERSISTENT}


@pytest.mark.parametrize(
    ("type", "arguments", "binding"),
    [
        ("topic", {}, "a.*"),
        ("direct", {}, "a.b"),
        ("fanout", {}, ""),
        ("headers", {}, ""),
        ("x-consistent-hash", {}, "3"),
        ("x-consistent-hash", {"hash-header": "h"}, "3"),
    ],
)
async def test_a_tap_has_a_topic_pattern_on_every_type_of_exchange(
    tmp_path: Path, type: str, arguments: dict[str, Any], binding: str
) -> None:
    """A tap copies messages with matching keys whatever the bindings; the bound queue's messages are unchanged."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", type, durable=True, arguments=arguments)
        queue = await channel.declare_queue("q", durable=True)
        await queue.bind("x", binding)
        keys = ["a.b", "a.c", "b.a", "a"] * 3
        await publish(exchange, keys)
        alone = broker.queue("q").ready
        await broker.server.taps.add("/", "x", "a.*", name="some")
        await broker.server.taps.add("/", "x", "#", name="all")
        await publish(exchange, keys)
        await publish(exchange, keys, persistent=False)
        assert broker.queue("q").ready == 3 * alone > 0
        await broker.server.taps.seal()
        heard = [row.key.decode() for row in rows_of(broker.server.taps, "some")]
        assert heard == [key for key in keys * 2 if key in ("a.b", "a.c")]
        assert [row.key.decode() for row in rows_of(broker.server.taps, "all")] == keys * 2
        await broker.server.taps.remove("/", "all")
        await publish(exchange, keys)
        assert broker.queue("q").ready == 4 * alone
        assert broker.server.taps.listing()[0]["messages"] == len(keys) * 2


async def test_a_tap_on_the_default_exchange_hears_what_queues_get_by_name(tmp_path: Path) -> None:
    """A tap on the default exchange copies messages to existing and to missing queues."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        await channel.declare_queue("jobs.a", durable=True)
        await publish(channel.default_exchange, ["jobs.a", "other"])
        row = await broker.server.taps.add("/", "", "jobs.*")
        assert row["name"] == "default"
        await publish(channel.default_exchange, ["jobs.a", "other", "jobs.b", "jobs.a"])
        assert broker.queue("jobs.a").ready == 3
        await broker.server.taps.seal()
        assert bodies_of(broker.server.taps, "default") == [b"0 jobs.a", b"2 jobs.b", b"3 jobs.a"]


async def test_a_tap_behind_another_exchange_hears_each_message_once(tmp_path: Path) -> None:
    """A tap copies messages through a binding between exchanges, by CC, in a transaction, and as a dead letter."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        first = await channel.declare_exchange("first", "topic", durable=True)
        second = await channel.declare_exchange("second", "fanout", durable=True)
        await second.bind(first, "a.#")
        await broker.server.taps.add("/", "second", "#")
        await publish(first, ["a.b", "b.a"])
        await publish(first, ["a.c"], headers={"CC": ["a.d", "b.x"]})
        assert broker.queue("amq.tap.second").ready == 2
        dying = await channel.declare_queue(
            "dying", durable=True, arguments={"x-dead-letter-exchange": "second", "x-message-ttl": 10}
        )
        await publish(channel.default_exchange, [dying.name])
        broker.clock.advance(1)
        await broker.idle()
        await broker.server.taps.seal()
        assert bodies_of(broker.server.taps, "second") == [b"0 a.b", b"0 a.c", b"0 dying"]


async def test_what_only_a_tap_hears_is_unroutable_as_ever(tmp_path: Path) -> None:
    """A mandatory message is returned with 312 and confirmed, or goes to the alternate exchange; the tap has both."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        for kind in ("topic", "headers"):
            plain = await channel.declare_exchange(kind, kind, durable=True)
            other = await channel.declare_exchange(
                f"{kind}.alternate", kind, durable=True, arguments={"alternate-exchange": "amq.fanout"}
            )
            caught = await channel.declare_queue(f"{kind}.caught", durable=True)
            await caught.bind("amq.fanout")
            for name in (kind, f"{kind}.alternate"):
                await broker.server.taps.add("/", name, "#")
            for persistent in (True, False):
                assert await publish(plain, ["k"], mandatory=True, persistent=persistent) == [312]
                assert await publish(plain, ["k"], persistent=persistent) == []
                assert await publish(other, ["k"], mandatory=True, persistent=persistent) == []
            assert broker.queue(caught.name).ready == 2
            await caught.delete(if_empty=False)
            await broker.server.taps.seal()
            assert len(rows_of(broker.server.taps, kind)) == 4
            assert len(rows_of(broker.server.taps, f"{kind}.alternate")) == 2


async def test_a_tap_is_no_binding(tmp_path: Path) -> None:
    """An exchange with only a tap is unused, auto-deletes, and has the tap again when it is declared again."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        passing = await channel.declare_exchange("passing", "fanout", auto_delete=True)
        await broker.server.taps.add("/", "x", "#")
        await broker.server.taps.add("/", "passing", "#")
        queue = await channel.declare_queue("q", durable=True)
        await queue.bind(passing)
        await publish(passing, ["k"])
        await queue.unbind(passing)
        await exchange.delete(if_unused=True)
        assert {"x", "passing"}.isdisjoint(broker.exchanges())
        assert [row["listens"] for row in broker.server.taps.listing()] == [False, False]
        passing = await channel.declare_exchange("passing", "direct", auto_delete=True)
        await publish(passing, ["k2"])
        await broker.server.taps.seal()
        assert bodies_of(broker.server.taps, "passing") == [b"0 k", b"0 k2"]


async def test_an_exchange_that_cannot_read_the_pattern_is_not_heard(tmp_path: Path) -> None:
    """A new exchange of another pattern dialect under an old name is not tapped; the client sees no difference."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        taps = broker.server.taps
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await taps.add("/", "x", "a.#")
        await exchange.delete()
        exchange = await channel.declare_exchange("x", "topic", durable=True, arguments={"x-topic-dialect": "mqtt"})
        await publish(exchange, ["a.b"])
        assert [(row["listens"], row["waiting"]) for row in taps.listing()] == [(False, 0)]
        await taps.remove("/", "x")
        await exchange.delete()
        exchange = await channel.declare_exchange("x", "topic", durable=True, arguments={"x-topic-dialect": "mqtt"})
        await taps.add("/", "x", "a/#")
        await publish(exchange, ["a/b", "b/a"])
        await taps.seal()
        assert bodies_of(taps, "x") == [b"0 a/b"]


async def test_no_client_can_use_the_queue_of_a_tap(tmp_path: Path) -> None:
    """Consume, get, purge, delete, bind and a passive declare are refused; a message to its name is unroutable."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as held:
        connection = await aio_pika.connect(broker.url)
        await held.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "#", name="t")

        async def refused(method: str, **arguments: Any) -> None:
            channel: Any = await connection.channel()
            underlay = await channel.get_underlay_channel()
            with pytest.raises(ChannelAccessRefused):
                await getattr(underlay, method)(**arguments)

        name = "amq.tap.t"
        await refused("basic_consume", queue=name, consumer_callback=print)
        await refused("basic_get", queue=name)
        await refused("queue_purge", queue=name)
        await refused("queue_delete", queue=name)
        await refused("queue_bind", queue=name, exchange="x", routing_key="k")
        await refused("queue_declare", queue=name, passive=True)
        await refused("queue_declare", queue=name, durable=True)
        assert await publish(held.default_exchange, [name], mandatory=True) == [312]
        assert broker.queue(name).ready == 0
        await connection.close()


async def test_neither_policies_nor_expirations_hold_for_a_tap(tmp_path: Path) -> None:
    """Messages that a policy or an expiration would remove are in the slot file."""
    async with timed_broker(tmp_path, taps={"window_ms": 3_600_000}) as broker, channel_of(broker) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await broker.server.taps.add("/", "x", "#")
        policy = Policy("all", ".*", "all", {"max-length": 1, "message-ttl": 1}, 0)
        broker.server.vhosts["/"].policies.set(policy)
        await publish(exchange, ["a", "b", "c"], expiration=0.001)
        broker.clock.advance(100)
        await broker.idle()
        await broker.server.taps.seal()
        assert bodies_of(broker.server.taps, "x") == [b"0 a", b"1 b", b"2 c"]
