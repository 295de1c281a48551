"""Shared subscriptions: each message goes to one client of a group, and to no other group's or subscription's cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import PUBACK, PUBLISH, SUBACK, UNSUBACK, RawMqtt, packet, publish, subscribe, text

HOUR = b"\x11\x00\x00\x0e\x10"  # a session expiry of 3,600 s
GOODBYE = packet(0xE0)


def shared(name: str, topic_filter: str) -> str:
    """Return the filter of a shared subscription."""
    return f"$share/{name}/{topic_filter}"


def unsubscribe(client: RawMqtt, topic_filter: str) -> int:
    """Unsubscribe, and return the reason code."""
    return client.send(packet(0xA2, b"\0\x09\0", text(topic_filter))).expect(UNSUBACK)[-1]


def exists(channel: Any, queue: str) -> bool:
    """Return whether a queue exists; the channel is open afterwards."""
    opened = channel.connection.channel()
    try:
        opened.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    opened.close()
    return True


@pytest.mark.parametrize("qos", [0, 1])
def test_each_message_goes_to_one_client(enter: Callable[..., RawMqtt], name: str, channel: Any, qos: int) -> None:
    """Two clients of a group share what comes; another group and an ordinary subscription get all of it."""
    topic = f"{name}/+"
    one, two, other, plain = (enter(f"{name}-{number}") for number in range(4))
    for client in (one, two):
        assert client.send(subscribe(1, (shared("g", topic), qos), properties=b"\x0b\x05")).expect(SUBACK)[-1] == qos
    other.send(subscribe(1, (shared("h", topic), qos))).expect(SUBACK)
    plain.send(subscribe(1, (topic, qos))).expect(SUBACK)
    writer = enter(f"{name}-w")
    got: dict[bytes, int] = {}
    for number in range(6):
        writer.send(publish(f"{name}/a", b"%d" % number, 1)).expect(PUBACK)
    for client in (other, plain):
        arrived = [client.receive() for _ in range(6)]
        assert [(each.body, each.qos, each.properties) for each in arrived] == [
            (b"%d" % number, qos, b"") for number in range(6)
        ]
    for client in (one, two):
        arrived = [client.receive() for _ in range(3)]
        assert {(each.qos, each.properties) for each in arrived} == {(qos, b"\x0b\x05")}
        got |= {each.body: each.packet_id for each in arrived}
        for each in arrived:
            if qos:
                assert each.packet_id > 32_767
                client.acknowledge(each.packet_id)
        assert client.silent(0.05)
    assert sorted(got) == [b"%d" % number for number in range(6)]
    assert unsubscribe(one, shared("g", topic)) == 0
    assert unsubscribe(one, shared("g", topic)) == 0x11
    writer.send(publish(f"{name}/a", b"last", 1)).expect(PUBACK)
    assert two.receive().body == b"last"
    queue = f"mqtt-shared-g/{topic}"
    assert exists(channel, queue)
    assert unsubscribe(two, shared("g", topic)) == 0
    assert not exists(channel, queue)


def test_what_a_client_leaves_goes_to_another(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """An unacknowledged message is not lost with its client; the queue ends with the last client of the group."""
    one, two, writer = enter(name), enter(f"{name}-2"), enter(f"{name}-w")
    one.send(subscribe(1, (shared("g", name), 1))).expect(SUBACK)
    writer.send(publish(name, b"x", 1)).expect(PUBACK)
    assert one.receive().body == b"x"
    two.send(subscribe(1, (shared("g", name), 2))).expect(SUBACK)
    assert two.silent(0.05)
    assert one.send(GOODBYE).ends()
    got = two.receive()
    assert (got.body, got.dup) == (b"x", False)
    two.acknowledge(got.packet_id)
    assert exists(channel, f"mqtt-shared-g/{name}")
    assert two.send(GOODBYE).ends()
    assert not exists(channel, f"mqtt-shared-g/{name}")


def test_retained_messages_are_not_shared(enter: Callable[..., RawMqtt], name: str) -> None:
    """A shared subscription gets no retained message."""
    writer, client = enter(f"{name}-w"), enter(name)
    writer.send(publish(name, b"kept", 1, flags=1)).expect(PUBACK)
    client.send(subscribe(1, (shared("g", name), 1))).expect(SUBACK)
    assert client.silent(0.1)
    writer.send(publish(name, b"", 2, flags=1)).expect(PUBACK)


def test_a_changed_subscription_replaces_the_earlier(enter: Callable[..., RawMqtt], name: str) -> None:
    """Its QoS and its identifier are those of the last SUBSCRIBE, and one UNSUBSCRIBE ends it."""
    client, writer = enter(name), enter(f"{name}-w")
    for packet_id, (qos, properties) in enumerate([(1, b""), (0, b"\x0b\x07"), (1, b"\x0b\x08")], 1):
        client.send(subscribe(packet_id, (shared("g", name), qos), properties=properties)).expect(SUBACK)
        writer.send(publish(name, b"x", 1)).expect(PUBACK)
        got = client.receive()
        assert (got.qos, got.properties) == (qos, properties)
        if qos:
            client.acknowledge(got.packet_id)
    assert unsubscribe(client, shared("g", name)) == 0
    writer.send(publish(name, b"y", 2)).expect(PUBACK)
    assert client.silent(0.05)


@pytest.mark.parametrize("end", ["kill", "disconnect"])
def test_a_session_that_lasts_keeps_its_shared_subscriptions(tmp_path: Path, name: str, end: str) -> None:
    """They and the messages of the group outlive connections and kills; the session's end ends them."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, properties=HOUR)
            client.send(subscribe(1, (shared("g", f"{name}/#"), 1), properties=b"\x0b\x05")).expect(SUBACK)
        with RawMqtt(mqtt_port(process)) as writer:
            writer.enter(f"{name}-w")
            writer.send(publish(f"{name}/a", b"missed", 1)).expect(PUBACK)
            if end == "kill":
                process.kill()
                process.start()
        with RawMqtt(mqtt_port(process)) as client:
            assert client.enter(name, clean=False, properties=HOUR)[0] == 1
            got = client.receive()
            assert (got.body, got.properties) == (b"missed", b"\x0b\x05")
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, clean=True, properties=HOUR)
            assert client.silent(0.1)
            client.send(subscribe(1, (shared("g", f"{name}/#"), 1))).expect(SUBACK)
            assert client.silent(0.1), "the queue has ended with the session"
    finally:
        process.kill()


def test_a_client_that_acknowledges_nothing_has_no_more_than_the_packet_ids(tmp_path: Path) -> None:
    """With the largest prefetch, the broker answers others while every packet id of a shared subscription is in use."""
    process = mqtt_process(tmp_path / "folder", SLOTMQ_MQTT__PREFETCH="65535").start()
    try:
        with RawMqtt(mqtt_port(process)) as client:
            client.enter("c", properties=b"\x21\xff\xff")
            client.send(subscribe(1, ("$share/g/t", 1))).expect(SUBACK)
            connection = pika.BlockingConnection(pika.URLParameters(process.address.url))
            channel = connection.channel()
            for _ in range(33_000):
                channel.basic_publish("amq.topic", "t", b"", pika.BasicProperties(delivery_mode=2))
            channel.close()
            ids = {client.expect(PUBLISH)[3:5] for _ in range(32_767)}
            assert len(ids) == 32_767
            client.round_trip()
            connection.close()
    finally:
        process.kill()
