"""Deliveries at QoS 2: each arrives once, over connections, restarts and kills."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.deadline import DEADLINE_S
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import PUBCOMP, PUBREC, SUBACK, RawMqtt, packet, publish, pubrel, subscribe, text

HOUR = b"\x11\x00\x00\x0e\x10"  # a session expiry of 3,600 s
PUBREL = 0x60


def publish_2(client: RawMqtt, topic: str, body: bytes, packet_id: int = 1) -> None:
    """Publish at QoS 2, to the end of its handshake."""
    octets = publish(topic, body, packet_id)
    client.send(bytes([octets[0] + 2]) + octets[1:]).expect(PUBREC)
    client.send(pubrel(packet_id)).expect(PUBCOMP)


def pubrec(packet_id: int, code: bytes = b"") -> bytes:
    """Return a PUBREC packet."""
    return packet(PUBREC, packet_id.to_bytes(2, "big"), code)


def pubcomp(packet_id: int) -> bytes:
    """Return a PUBCOMP packet."""
    return packet(PUBCOMP, packet_id.to_bytes(2, "big"))


@pytest.mark.parametrize("version", [4, 5])
def test_a_delivery_is_a_handshake(enter: Callable[..., RawMqtt], name: str, version: int) -> None:
    """PUBLISH, PUBREC, PUBREL, PUBCOMP; a repeated PUBREC is answered, and one of an unknown packet id with 0x92."""
    extra = None if version == 4 else b""
    client, writer = enter(name, version), enter(f"{name}-w")
    assert client.send(subscribe(1, (name, 2), properties=extra)).expect(SUBACK)[-1] == 2
    publish_2(writer, name, b"x")
    first, body = client.read()
    assert (first, body[-1:]) == (0x34, b"x")
    octets = body[len(text(name)) :][:2]
    for _ in range(2):
        assert client.send(packet(PUBREC, octets)).read() == (0x62, octets)
    client.send(packet(PUBCOMP, octets)).round_trip()
    assert client.send(packet(PUBREC, octets)).expect(PUBREL) == octets + (b"\x92" if version == 5 else b"")


def test_the_lower_qos_counts(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """The lower QoS of the publish and of the best subscription applies; AMQP's persistent messages have QoS 1."""
    two, one = enter(name), enter(f"{name}-1")
    two.send(subscribe(1, (f"{name}/#", 1), (f"{name}/a", 2))).expect(SUBACK)
    one.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)

    def arrived(topic: str) -> tuple[int, int]:
        writer.round_trip()
        found = two.receive(), one.receive()
        two.send(pubrec(found[0].packet_id) if found[0].qos == 2 else packet(0x40, found[0].packet_id.to_bytes(2)))
        if found[0].qos == 2:
            two.expect(PUBREL)
            two.send(pubcomp(found[0].packet_id))
        one.acknowledge(found[1].packet_id)
        assert {each.topic for each in found} == {f"{name}/{topic}"}
        assert {each.properties for each in found} == {b""}, "the header is not shown"
        return found[0].qos, found[1].qos

    writer = enter(f"{name}-w")
    publish_2(writer, f"{name}/a", b"2")
    assert arrived("a") == (2, 1)
    publish_2(writer, f"{name}/b", b"2")
    assert arrived("b") == (1, 1)
    channel.basic_publish("amq.topic", f"{name}.a", b"amqp", pika.BasicProperties(delivery_mode=2))
    assert arrived("a") == (1, 1)


@pytest.mark.parametrize("end", ["kill", "disconnect"])
@pytest.mark.parametrize("step", ["delivered", "received", "released", "completed"])
def test_a_delivery_arrives_once(tmp_path: Path, name: str, step: str, end: str) -> None:
    """A handshake that is cut off at any step continues with its packet id, and no message comes twice or is lost."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as client, RawMqtt(mqtt_port(process)) as writer:
            client.enter(name, properties=HOUR)
            client.send(subscribe(1, (name, 2))).expect(SUBACK)
            writer.enter(f"{name}-w")
            publish_2(writer, name, b"first")
            publish_2(writer, name, b"second")
            left = {one.packet_id: one.body for one in (client.receive(), client.receive())}
            one = min(left)
            if step != "delivered":
                client.send(pubrec(one))
            if step in ("released", "completed"):
                assert client.expect(PUBREL) == one.to_bytes(2, "big")
            if step == "completed":
                client.send(pubcomp(one)).round_trip()
                publish_2(writer, name, b"third")  # the end of the handshake is on disk with it
                del left[one]
                third = client.receive()
                left[third.packet_id] = third.body
            if end != "disconnect":
                process.kill()
        if end != "disconnect":
            process.start()
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, clean=False, properties=HOUR)
            while left:
                first, body = client.read()
                octets = body[len(text(name)) :][:2] if first & 0xF0 == 0x30 else body[:2]
                packet_id = int.from_bytes(octets, "big")
                if first & 0xF0 == 0x30:
                    assert first & 0x0C == 0x0C, "QoS 2, again"
                    assert body.endswith(left[packet_id]), "the packet id is that of the first time"
                    client.send(packet(PUBREC, octets))
                else:
                    assert first == 0x62
                    client.send(packet(PUBCOMP, octets))
                    del left[packet_id]
            client.round_trip()
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, clean=False, properties=HOUR)
            assert client.silent()
    finally:
        process.kill()


def test_a_handshake_takes_its_place_in_the_window(enter: Callable[..., RawMqtt], name: str) -> None:
    """A client with Receive Maximum 1 gets the next message after its PUBCOMP, or after a PUBREC with an error."""
    client, writer = enter(name, properties=b"\x21\0\1"), enter(f"{name}-w")
    client.send(subscribe(1, (name, 2))).expect(SUBACK)
    for number in range(3):
        publish_2(writer, name, b"%d" % number)
    got = client.receive()
    client.send(pubrec(got.packet_id)).expect(PUBREL)
    assert client.silent(0.1)
    got = client.send(pubcomp(got.packet_id)).receive()
    assert got.body == b"1"
    got = client.send(pubrec(got.packet_id, b"\x80")).receive()
    assert (got.body, got.dup) == (b"2", False)


def test_a_handshake_ends_with_its_session(enter: Callable[..., RawMqtt], name: str) -> None:
    """A clean start forgets it: no PUBREL comes."""
    client, writer = enter(name, properties=HOUR), enter(f"{name}-w")
    client.send(subscribe(1, (name, 2))).expect(SUBACK)
    publish_2(writer, name, b"x")
    client.send(pubrec(client.receive().packet_id)).expect(PUBREL)
    again = enter(name, properties=HOUR)
    assert again.silent(0.1)


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
def test_paho_gets_each_message_once(port: int, name: str, version: MQTTProtocolVersion) -> None:
    """A hundred messages at QoS 2 from paho to paho."""
    received: list[bytes] = []
    all_there, ready = threading.Event(), threading.Event()

    def note(_client: Any, _data: Any, message: Any) -> None:
        assert message.qos == 2
        received.append(message.payload)
        if len(received) == 100:
            all_there.set()

    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=version)
    client.username_pw_set("guest", "guest")
    client.on_message = note
    client.on_subscribe = lambda *_arguments: ready.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe(name, 2)
    assert ready.wait(DEADLINE_S)
    sent = [client.publish(name, b"%d" % number, 2) for number in range(100)]
    assert all_there.wait(DEADLINE_S)
    for one in sent:
        one.wait_for_publish(DEADLINE_S)
    client.disconnect()
    client.loop_stop()
    assert received == [b"%d" % number for number in range(100)]
