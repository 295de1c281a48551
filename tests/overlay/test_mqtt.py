"""MQTT clients of two sites: what is published at one is delivered, and retained, at the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
from aiomqtt import Client, Message, ProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.testing import Broker
from tests.deadline import DEADLINE_S
from tests.overlay.sites import pair, reached, sites, wanted

TOPICS = "amq.topic"
MQTT: dict[str, Any] = {"enabled": True, "port": 0, "tls_port": 0}


@asynccontextmanager
async def client(broker: Broker) -> AsyncIterator[Client]:
    """Yield a client of MQTT 5."""
    port = broker.server.mqtt.port
    async with Client("127.0.0.1", port, username="guest", password="guest", protocol=ProtocolVersion.V5) as connected:
        yield connected


async def received(connected: Client, count: int) -> list[Message]:
    """Return the next messages."""
    found: list[Message] = []
    async with asyncio.timeout(DEADLINE_S):
        async for message in connected.messages:
            found.append(message)
            if len(found) == count:
                break
    return found


async def test_what_one_site_publishes_is_delivered_and_retained_at_the_other(tmp_path: Path) -> None:
    """Properties and the flag cross; a later subscriber gets what crossed, replaced and deleted in place."""
    async with (
        sites(tmp_path, pair(exchanges=[TOPICS]), mqtt=MQTT) as (pb, sb),
        client(pb) as writer,
        client(sb) as reader,
    ):
        await reader.subscribe("home/#", qos=1)
        await reached(lambda: wanted(pb, "site-b", TOPICS) == ["home.#"], "the subscription")
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("unit", "C"), ("unit", "K")]
        properties.ContentType = "text/plain"
        for topic, body in (("home/v1.0/t", "1"), ("home/v1.0/t", "2"), ("home/gone", "3"), ("home/gone", "")):
            await writer.publish(topic, body, qos=1, retain=True, properties=properties)
        await writer.publish("away", "x", qos=1, retain=True)
        await writer.publish("home/live", "4", qos=1)
        found = await received(reader, 5)
        assert [(str(one.topic), one.payload) for one in found] == [
            ("home/v1.0/t", b"1"),
            ("home/v1.0/t", b"2"),
            ("home/gone", b"3"),
            ("home/gone", b""),
            ("home/live", b"4"),
        ]
        crossed: Any = found[1].properties
        assert (crossed.UserProperty, crossed.ContentType) == ([("unit", "C"), ("unit", "K")], "text/plain")
        async with client(sb) as later:
            await later.subscribe("#", qos=1)
            await reached(lambda: wanted(pb, "site-b", TOPICS) == ["#"], "the wider subscription")
            await writer.publish("home/live", "5", qos=1)
            found = await received(later, 2)
            kept: Any = found[0].properties
            assert [(str(one.topic), one.payload, one.retain) for one in found] == [
                ("home/v1.0/t", b"2", True),
                ("home/live", b"5", False),
            ]
            assert kept.UserProperty == [("unit", "C"), ("unit", "K")]


async def test_a_queue_that_keeps_nothing_makes_a_site_retain_everything(tmp_path: Path) -> None:
    """A site whose queue for `#` has no room retains what no client of it has subscribed to."""
    async with sites(tmp_path, pair(exchanges=[TOPICS]), mqtt=MQTT) as (pb, sb), client(pb) as writer:
        async with await aio_pika.connect(sb.url) as amqp:
            channel = await amqp.channel()
            queue = await channel.declare_queue("everything", durable=True, arguments={"x-max-length": 0})
            await queue.bind(TOPICS, "#")
        await reached(lambda: wanted(pb, "site-b", TOPICS) == ["#"], "the queue's binding")
        await writer.publish("home/t", "1", qos=1, retain=True)
        await reached(lambda: "amq.retained" in sb.server.vhosts["/"].queues, "the retained message")
        async with client(sb) as later:
            await later.subscribe("home/#", qos=1)
            found = await received(later, 1)
        assert [(str(one.topic), one.payload, one.retain) for one in found] == [("home/t", b"1", True)]
        assert sb.server.vhosts["/"].queues["everything"].ready == 0
