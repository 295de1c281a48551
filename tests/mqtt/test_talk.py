"""Publishing and subscribing with real clients, in both versions, and across to AMQP."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import aiomqtt
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import PUBACK, PUBLISH, SUBACK, RawMqtt, publish, subscribe, text

VERSIONS = [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]


class Paho:
    """A paho client in a thread, whose messages are in `received`."""

    def __init__(self, port: int, client_id: str, version: MQTTProtocolVersion) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version)
        self.client.username_pw_set("guest", "guest")
        self.received: queue.Queue[Any] = queue.Queue()
        self.granted: queue.Queue[list[int]] = queue.Queue()
        self.client.on_message = lambda _client, _data, message: self.received.put(message)
        self.client.on_subscribe = lambda _c, _d, _m, codes, _p: self.granted.put([code.value for code in codes])
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        """Subscribe and return the codes."""
        self.client.subscribe(list(filters))
        return self.granted.get(timeout=DEADLINE_S)

    def next(self) -> Any:
        """Return the next message."""
        return self.received.get(timeout=DEADLINE_S)

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_arrive_in_order_at_the_lower_qos(port: int, name: str, version: MQTTProtocolVersion) -> None:
    """A subscriber gets the matching messages, each at the lower QoS of publish and subscription."""
    reader, writer = Paho(port, f"{name}-r", version), Paho(port, f"{name}-w", version)
    try:
        assert reader.subscribe((f"{name}/+/temp", 1), (f"{name}/low/#", 0)) == [1, 0]
        for number in range(50):
            writer.client.publish(f"{name}/k/temp", f"{number}", 1).wait_for_publish(DEADLINE_S)
        writer.client.publish(f"{name}/other", b"no", 1)
        writer.client.publish(f"{name}/k/temp", b"", 0)
        found = [reader.next() for _ in range(51)]
        assert [one.payload for one in found[:50]] == [b"%d" % number for number in range(50)]
        assert [one.qos for one in found] == [1] * 50 + [0]
        writer.client.publish(f"{name}/low/x.y/", b"z" * 100_000, 1).wait_for_publish(DEADLINE_S)
        low = reader.next()
        assert (low.topic, low.qos, len(low.payload)) == (f"{name}/low/x.y/", 0, 100_000)
    finally:
        reader.close()
        writer.close()


def test_aiomqtt_talks_to_itself(port: int, name: str) -> None:
    """An asyncio client with MQTT 5 subscribes, publishes and receives."""

    async def talk() -> bytes:
        login: dict[str, Any] = {"username": "guest", "password": "guest", "protocol": aiomqtt.ProtocolVersion.V5}
        async with aiomqtt.Client("127.0.0.1", port, **login) as client:
            await client.subscribe(f"{name}/#", qos=1)
            await client.publish(f"{name}/a", b"hello", qos=1)
            async for message in client.messages:
                return bytes(message.payload)
        raise AssertionError

    assert asyncio.run(asyncio.wait_for(talk(), DEADLINE_S)) == b"hello"


def test_amqp_reads_what_mqtt_publishes(port: int, name: str, channel: Any) -> None:
    """The topic is the routing key with / and . swapped, the properties are those of RabbitMQ's mapping."""
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, "amq.topic", f"{name}.#")
    writer = Paho(port, f"{name}-w", MQTTProtocolVersion.MQTTv5)
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    properties.CorrelationData = b"id-1"
    properties.ResponseTopic = "answers/here"
    properties.MessageExpiryInterval = 60
    properties.UserProperty = [("b", "2"), ("a", "1")]
    writer.client.publish(f"{name}/v1.2/x", b"body", 1, properties=properties).wait_for_publish(DEADLINE_S)
    writer.client.publish(f"{name}/y", b"", 0)
    writer.close()
    method, first, body = next(channel.consume(name, inactivity_timeout=DEADLINE_S))
    assert (method.routing_key, body) == (f"{name}.v1/2.x", b"body")
    assert (first.content_type, first.correlation_id, first.delivery_mode) == ("text/plain", "id-1", 2)
    assert first.expiration == "60000"
    assert first.headers == {"x-reply-to-topic": "answers.here", "b": "2", "a": "1"}
    method, second, body = next(channel.consume(name, inactivity_timeout=DEADLINE_S))
    assert (method.routing_key, body, second.delivery_mode) == (f"{name}.y", b"", 1)


def test_mqtt_reads_what_amqp_publishes(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """Text headers are user properties in their order; an expiration is the rest of it, in seconds."""
    client = enter(name)
    client.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
    properties = pika.BasicProperties(
        "text/plain",
        headers={"z": "26", "number": 5, "x-reply-to-topic": "a.b"},
        delivery_mode=2,
        correlation_id="c",
        expiration="5900",
    )
    channel.basic_publish("amq.topic", f"{name}.a/b", b"body", properties)
    first, body = client.read()
    assert first == 0x32
    topic = text(f"{name}/a.b")
    assert body.startswith(topic)
    assert body.endswith(b"body")
    read = Properties(PacketTypes.PUBLISH)
    read.unpack(body[len(topic) + 2 : -4])
    assert read.json() == {
        "MessageExpiryInterval": 5,
        "ContentType": "text/plain",
        "ResponseTopic": "a/b",
        "CorrelationData": "63",
        "UserProperty": [("z", "26")],
    }


def test_keys_that_are_no_topics_are_passed_over(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """A key with a wildcard of MQTT, or one that begins with $, reaches no subscriber, and the next message does."""
    client = enter(name)
    client.send(subscribe(1, ("#", 0x21))).expect(SUBACK)  # no retained messages
    persistent = pika.BasicProperties(delivery_mode=2)
    for key in [f"{name}.+", f"$SYS.{name}", f"{name}.#", ""] * 5 + [f"{name}.good"]:  # more than the window
        channel.basic_publish("amq.topic", key, key.encode(), persistent)
    found = [client.expect(PUBLISH)]
    while not found[-1].endswith(b"good"):
        found.append(client.expect(PUBLISH))
    assert [body for body in found if name.encode() in body] == [found[-1]]


def test_a_window_bounds_what_is_unacknowledged(enter: Callable[..., RawMqtt], name: str) -> None:
    """A client with a receive maximum of 2 gets two messages at QoS 1, and one more for each PUBACK."""
    client = enter(name, properties=b"\x21\x00\x02")
    writer = enter(f"{name}-w")
    client.send(subscribe(1, (name, 1))).expect(SUBACK)
    for number in range(1, 5):
        writer.send(publish(name, b"%d" % number, number)).expect(PUBACK)
    taken = [client.expect(PUBLISH), client.expect(PUBLISH)]
    assert client.silent()
    packet_id = taken[0][len(text(name)) :][:2]
    third = client.send(b"\x40\x02" + packet_id).expect(PUBLISH)
    assert [body[-1:] for body in (*taken, third)] == [b"1", b"2", b"3"]
    assert client.silent()


def test_a_message_that_waited_has_fewer_seconds_left(enter: Callable[..., RawMqtt], name: str) -> None:
    """Of two equal messages, the one that waits for the window for more than a second has a lower expiry."""
    client, writer = enter(name, properties=b"\x21\x00\x01"), enter(f"{name}-w")
    client.send(subscribe(1, (name, 1))).expect(SUBACK)
    writer.send(*[publish(name, b"x", number, b"\x02\0\0\0\x64") for number in range(1, 6)])
    for _ in range(3):  # the broker knows the topic then
        client.acknowledge(client.receive().packet_id)
    first = client.receive()
    assert client.silent(1.1)
    client.acknowledge(first.packet_id)
    second = client.receive()
    assert second.properties[:4] == first.properties[:4] == b"\x02\0\0\0"
    assert 90 < second.properties[4] < first.properties[4] <= 100


def test_messages_at_qos_0_use_up_no_window(enter: Callable[..., RawMqtt], name: str) -> None:
    """A subscription at QoS 1 gets any number of messages that were published at QoS 0, without a PUBACK."""
    client, writer = enter(name, properties=b"\x21\x00\x02"), enter(f"{name}-w")
    client.send(subscribe(1, (name, 1))).expect(SUBACK)
    writer.send(*[publish(name, b"%d" % number) for number in range(200)])
    assert [client.read() for _ in range(200)] == [(0x30, text(name) + b"\0" + b"%d" % number) for number in range(200)]


def test_publishes_that_arrive_together_are_acknowledged_in_order(enter: Callable[..., RawMqtt], name: str) -> None:
    """Runs of both QoS, with and without subscribers, get the PUBACK packets of their packet ids, in order."""
    client = enter(name, 4)
    client.send(subscribe(1, (f"{name}/a", 0), properties=None)).expect(SUBACK)
    packets = []
    for number in range(1, 300):
        topic = f"{name}/{'a' if number % 3 else 'b'}"
        packets.append(publish(topic, b"x" * (number % 200), number if number % 5 else 0, None))
    client.send(*packets)
    acked: list[int] = []
    bodies: list[int] = []
    while len(acked) < 240 or len(bodies) < 200:
        first, body = client.read()
        if first == PUBACK:
            acked.append(int.from_bytes(body, "big"))
        else:
            bodies.append(len(body) - len(text(f"{name}/a")))
    assert acked == [number for number in range(1, 300) if number % 5]
    assert bodies == [number % 200 for number in range(1, 300) if number % 3]


def test_messages_that_arrive_together_are_delivered_as_each_was_published(
    enter: Callable[..., RawMqtt], name: str
) -> None:
    """Each message of a segment keeps its topic, body, QoS and expiry, whatever those of its neighbours are."""
    client, writer = enter(name), enter(f"{name}-w")
    client.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
    sent = [
        (f"{name}/{'ab'[number // 3 % 2]}", b"%d" % number * (1 + number // 5 % 3), number // 7 % 2, number // 4 % 2)
        for number in range(200)
    ]
    writer.send(
        *[
            publish(topic, body, number + 1 if qos else 0, b"\x02\0\0\x0e\x10" if expires else b"")
            for number, (topic, body, qos, expires) in enumerate(sent)
        ]
    )
    found = []
    for _ in sent:
        one = client.receive()
        if one.qos:
            client.acknowledge(one.packet_id)
        seconds = int.from_bytes(one.properties[1:], "big")
        assert not one.properties or (one.properties[0] == 2 and 3500 < seconds <= 3600), one
        found.append((one.topic, one.body, one.qos, int(len(one.properties) == 5)))
    assert found == sent
    acked = [int.from_bytes(writer.expect(PUBACK)[:2], "big") for _ in range(sum(qos for _, _, qos, _ in sent))]
    assert acked == [number + 1 for number, one in enumerate(sent) if one[2]]


def test_the_api_shows_mqtt_connections(tmp_path: Path, name: str) -> None:
    """A connection has RabbitMQ's name of its protocol, and the client id; the listener is in the list of them."""
    process = mqtt_process(tmp_path / "folder", SLOTMQ_HTTP__ENABLED="true", SLOTMQ_HTTP__PORT="0").start()
    try:
        with RawMqtt(mqtt_port(process)) as client, RawMqtt(mqtt_port(process)) as older:
            client.enter(name)
            older.enter(f"{name}-3", 4)
            client.send(subscribe(1, ("a", 1))).expect(SUBACK)
            rows = {row["client_properties"]["client_id"]: row for row in api(process, "connections")}
            assert rows[name]["protocol"] == "MQTT 5-0"
            assert rows[f"{name}-3"]["protocol"] == "MQTT 3-1-1"
            assert (rows[name]["user"], rows[name]["vhost"], rows[name]["user_provided_name"]) == ("guest", "/", name)
            [queue] = api(process, "queues")
            assert (queue["name"], queue["exclusive"]) == (f"mqtt-subscription-{name}qos1", True)
            listeners = {row["protocol"]: row["port"] for row in api(process, "overview")["listeners"]}
            assert listeners["mqtt"] == mqtt_port(process)
    finally:
        process.kill()


def api(process: BrokerProcess, path: str) -> Any:
    """Return the answer of the HTTP API."""
    port = next(event["http_port"] for event in process.log_events() if event["event"] == "server.started")
    login = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
    with urlopen(Request(f"http://127.0.0.1:{port}/api/{path}", headers=login)) as answer:
        return json.load(answer)
