"""Retained messages: the last of each topic, for every subscription that comes later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.broker_process import BrokerProcess
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBLISH,
    SUBACK,
    RawMqtt,
    connect,
    packet,
    publish,
    subscribe,
    text,
    varint,
)

RETAIN = 1
HOUR = b"\x11\x00\x00\x0e\x10"  # a session expiry of 3,600 s


@contextmanager
def amqp_channel(process: BrokerProcess) -> Iterator[Any]:
    """Provide a channel of pika."""
    connection = pika.BlockingConnection(pika.URLParameters(process.address.url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def retain(client: RawMqtt, topic: str, body: bytes, properties: bytes | None = b"") -> None:
    """Publish a retained message at QoS 1, and wait for its PUBACK."""
    client.send(publish(topic, body, 1, properties, RETAIN)).expect(PUBACK)


def taken(client: RawMqtt, qos: int = 1, version: int = 5) -> tuple[bool, str, bytes]:
    """Return RETAIN, topic and body of the next PUBLISH, and acknowledge it."""
    first, body = client.read()
    assert first & 0xF6 == PUBLISH | qos << 1, f"0x{first:02x} {body!r}"
    end = 2 + int.from_bytes(body[:2], "big")
    topic, rest = body[2:end].decode(), body[end:]
    if qos:
        client.send(packet(0x40, rest[:2]))
        rest = rest[2:]
    if version == 5:
        rest = rest[1 + rest[0] :]
    return first & 1 == 1, topic, rest


def retained_count(channel: Any) -> int:
    """Return how many messages the broker's queue of retained messages has."""
    return int(channel.queue_declare("amq.retained", passive=True).method.message_count)


def test_properties_and_quality_of_service_are_retained(enter: Callable[..., RawMqtt], name: str) -> None:
    """A copy has the properties of the message, and at most its QoS."""
    writer, reader = enter(f"{name}-w"), enter(f"{name}-r")
    properties = b"\x03" + text("t/p") + b"\x26" + text("a") + text("b")
    retain(writer, f"{name}/1", b"x", properties)
    writer.send(publish(f"{name}/0", b"y", 0, properties, RETAIN)).round_trip()
    reader.send(subscribe(1, (f"{name}/1", 1), (f"{name}/0", 1))).expect(SUBACK)
    first, body = reader.read()
    assert (first, body) == (
        0x33,
        text(f"{name}/1") + body[len(text(f"{name}/1")) :][:2] + varint(len(properties)) + properties + b"x",
    )
    first, body = reader.read()
    assert (first, body) == (0x31, text(f"{name}/0") + varint(len(properties)) + properties + b"y")


def test_a_will_is_retained(port: int, enter: Callable[..., RawMqtt], name: str) -> None:
    """The will of a lost client with the flag is for later subscribers, too."""
    reader = enter(f"{name}-r")
    reader.send(subscribe(1, (name, 1))).expect(SUBACK)
    with RawMqtt(port) as client:
        will = b"\0" + text(name) + text(b"lost")
        client.send(connect(f"{name}-w", will=will, will_flags=0x2C)).expect(CONNACK)
    assert taken(reader) == (False, name, b"lost")
    later = enter(f"{name}-l")
    later.send(subscribe(1, (name, 1))).expect(SUBACK)
    assert taken(later) == (True, name, b"lost")


@pytest.mark.parametrize("stop", ["kill", "terminate"])
def test_retained_messages_survive(tmp_path: Path, name: str, stop: str) -> None:
    """After a restart and after kill -9 each topic has the message whose PUBACK came last, and deleted ones none."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        for _ in range(2):
            with RawMqtt(mqtt_port(process)) as writer:
                writer.enter(f"{name}-w")
                for number in range(300):
                    writer.send(publish(f"{name}/{number}", b"old", 1 + number, flags=RETAIN))
                for number in range(200):
                    writer.send(publish(f"{name}/{number}", b"new%d" % number, 1001 + number, flags=RETAIN))
                for number in range(100):
                    writer.send(publish(f"{name}/{number}", b"", 2001 + number, flags=RETAIN))
                for _ in range(600):
                    writer.expect(PUBACK)
                getattr(process, stop)()
            process.start()
            with RawMqtt(mqtt_port(process)) as reader:
                reader.enter(name)
                reader.send(subscribe(1, (f"{name}/+", 1))).expect(SUBACK)
                got = [taken(reader) for _ in range(200)]
                assert reader.silent()
                with amqp_channel(process) as channel:
                    assert retained_count(channel) == 200
                topics = {topic: body for _, topic, body in got}
                expected = {number: b"new%d" % number if number < 200 else b"old" for number in range(100, 300)}
                assert topics == {f"{name}/{number}": body for number, body in expected.items()}
    finally:
        process.kill()


def test_what_is_retained_is_bounded(tmp_path: Path, name: str) -> None:
    """One message or one byte over a limit ends the connection with 0x97 and the setting; a replacement has room."""
    limits = {"SLOTMQ_MQTT__RETAINED_MAX": "3", "SLOTMQ_MQTT__RETAINED_MAX_BYTES": "2000"}
    process = mqtt_process(tmp_path / "folder", **limits).start()
    try:
        port = mqtt_port(process)
        with RawMqtt(port) as writer, RawMqtt(port) as reader:
            writer.enter(name)
            for number in (1, 2, 3, 3):
                retain(writer, f"a/{number}", b"x")
            writer.send(publish("a/4", b"x", 7, flags=RETAIN))
            said = writer.expect(DISCONNECT)
            assert said[0] == 0x97
            assert b"mqtt.retained_max " in said
            assert writer.ends()
            reader.enter(f"{name}-r")
            reader.send(subscribe(1, ("#", 0))).expect(SUBACK)
            assert sorted(taken(reader, 0)[1] for _ in range(3)) == ["a/1", "a/2", "a/3"]
            assert reader.silent()
        with RawMqtt(port) as writer:
            writer.enter(name)
            retain(writer, "a/1", bytes(1500))
            retain(writer, "a/1", bytes(1600))
            writer.send(publish("a/2", bytes(500), 7, flags=RETAIN))
            assert b"mqtt.retained_max_bytes" in writer.expect(DISCONNECT)
        with RawMqtt(port) as writer:
            writer.enter(name, 4)
            retain(writer, "a/1", b"", None)
            retain(writer, "a/4", b"", None)
            retain(writer, "a/4", b"x", None)
            assert writer.send(publish("a/5", b"x", 7, None, RETAIN)).ends()
    finally:
        process.kill()


@pytest.mark.parametrize("resident_mib", [1, 64])
def test_many_retained_messages_arrive_in_portions(tmp_path: Path, name: str, resident_mib: int) -> None:
    """5,000 of them arrive once each, paged out or not, and none after a newer message of its topic."""
    memory = {"SLOTMQ_MEMORY__RESIDENT_MAX_BYTES": str(resident_mib << 20)}
    process = mqtt_process(tmp_path / "folder", **memory).start()
    try:
        with RawMqtt(mqtt_port(process)) as writer:
            writer.enter(f"{name}-w")
            for start in range(0, 5000, 500):
                writer.send(
                    *[
                        publish(f"{name}/{number % 7}/{number}", b"1", 0, flags=RETAIN)
                        for number in range(start, start + 500)
                    ]
                )
            writer.round_trip()
            process.terminate()
        process.start()
        with RawMqtt(mqtt_port(process)) as slow, RawMqtt(mqtt_port(process)) as writer:
            slow.enter(name)
            writer.enter(f"{name}-w")
            slow.send(subscribe(1, (f"{name}/#", 0))).expect(SUBACK)
            for number in range(0, 5000, 50):
                writer.send(publish(f"{name}/{number % 7}/{number}", b"2", 1, flags=RETAIN)).expect(PUBACK)
            got: dict[str, list[tuple[bool, bytes]]] = {}
            left = 5100
            while left:
                marked, topic, body = taken(slow, 0)
                got.setdefault(topic, []).append((marked, body))
                left -= 1
            assert slow.silent()
        for topic, values in got.items():
            bodies = [body for _, body in values]
            assert bodies == sorted(bodies), (topic, values)
            assert sum(marked for marked, _ in values) == 1, (topic, values)
        assert len(got) == 5000
    finally:
        process.kill()


def test_paho_gets_what_home_assistant_subscribes_to(port: int, name: str) -> None:
    """Many filters in one packet, and again after a reconnection: retained each time."""
    got: list[tuple[str, bytes, bool]] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
    client.username_pw_set("guest", "guest")
    client.on_message = lambda _client, _data, message: got.append(
        (message.topic, bytes(message.payload), message.retain)
    )
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        for number in range(3):
            client.publish(
                f"{name}/sensor/{number}/config", json.dumps({"n": number}), 1, retain=True
            ).wait_for_publish(20)
        for _ in range(2):
            got.clear()
            client.subscribe([(f"{name}/+/{number}/config", 1) for number in range(3)])
            deadline = time.monotonic() + 20
            while len(got) < 3:
                assert time.monotonic() < deadline, got
                time.sleep(0.01)
            assert sorted(got) == [(f"{name}/sensor/{n}/config", b'{"n": %d}' % n, True) for n in range(3)]
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_purge_deletes_what_is_retained(tmp_path: Path, name: str) -> None:
    """After an operator has purged the queue nothing is sent, and topics can be retained again."""
    process: BrokerProcess = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name)
            retain(client, "a", b"x")
            retain(client, "b", b"x")
            with amqp_channel(process) as channel:
                channel.queue_purge("amq.retained")
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="retained messages of MQTT"):
                    channel.basic_get("amq.retained")
            retain(client, "b", b"y")
            client.send(subscribe(1, ("#", 0))).expect(SUBACK)
            assert taken(client, 0) == (True, "b", b"y")
            assert client.silent()
    finally:
        process.kill()
