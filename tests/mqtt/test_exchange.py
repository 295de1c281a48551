"""The exchange of topics: one in MQTT's dialect, on which topics are routing keys as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.broker_process import BrokerProcess
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import (
    CONNACK,
    PUBACK,
    PUBLISH,
    SUBACK,
    UNSUBACK,
    RawMqtt,
    connect,
    packet,
    publish,
    subscribe,
    text,
)

HOUR = b"\x11\x00\x00\x0e\x10"  # a session expiry of 3,600 s


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Provide a broker with an exchange of its own for topics."""
    started = mqtt_process(tmp_path_factory.mktemp("exchange") / "folder", SLOTMQ_MQTT__EXCHANGE="homes").start()
    yield started
    assert not started.errors()
    started.kill()


@pytest.fixture
def amqp(process: BrokerProcess) -> Iterator[Any]:
    """Provide a connection of pika."""
    connection = pika.BlockingConnection(pika.URLParameters(process.address.url))
    yield connection
    connection.close()


def test_topics_are_keys_as_they_are(process: BrokerProcess, amqp: Any, name: str) -> None:
    """Dots, stars and slashes mean what they mean in MQTT, both ways, for retained messages, options and wills, too."""
    topic = f"{name}/v1.2/*"
    with RawMqtt(mqtt_port(process)) as client, RawMqtt(mqtt_port(process)) as writer:
        client.enter(name, properties=HOUR)
        channel = amqp.channel()
        channel.queue_declare(name)
        channel.queue_bind(name, "homes", f"{name}/+/*")
        writer.enter(f"{name}-w")
        reply = b"\x08" + text("a.b/c")
        writer.send(publish(topic, b"1", 1, reply, 1), publish(f"{name}/v1/x", b"no", 2)).expect(PUBACK)
        method, properties, body = channel.basic_get(name, auto_ack=True)
        assert (method.routing_key, properties.headers["x-reply-to-topic"], body) == (topic, "a.b/c", b"1")
        assert channel.basic_get(name)[0] is None
        client.send(subscribe(1, (f"{name}/+/*", 0), (f"{name}/#", 0x20), properties=b"\x0b\x05")).expect(SUBACK)
        assert client.read() == (0x31, text(topic) + b"\x0c\x0b\x05\x0b\x05" + reply + b"1")
        channel.basic_publish("homes", f"{name}/a.b", b"2")
        assert client.read() == (0x30, text(f"{name}/a.b") + b"\x02\x0b\x052")
        with RawMqtt(mqtt_port(process)) as leaving:
            will = b"\x05\x18\0\0\0\1" + text(f"{name}/w.w") + text("bye")
            leaving.send(connect(f"{name}-l", properties=HOUR, clean=False, will=will, will_flags=4)).expect(CONNACK)
        assert client.read() == (0x30, text(f"{name}/w.w") + b"\x02\x0b\x05bye")
        client.send(packet(0xA2, b"\0\1\0", text(f"{name}/#"))).expect(UNSUBACK)
        writer.send(publish(f"{name}/x", b"no", 3), publish(topic, b"3", 4, flags=1))
        assert client.expect(PUBLISH).endswith(b"\x0b\x053")
        with RawMqtt(mqtt_port(process)) as again:
            again.enter(name, clean=False, properties=HOUR)
            writer.send(publish(topic, b"4", 5))
            assert again.expect(PUBLISH).endswith(b"\x0b\x054")


def test_an_exchange_in_another_dialect_is_refused(process: BrokerProcess, amqp: Any) -> None:
    """A client of a vhost whose exchange of that name is none of topics in MQTT's dialect is not connected."""
    channel = amqp.channel()
    channel.exchange_delete("homes")
    channel.exchange_declare("homes", "topic", durable=True)
    with RawMqtt(mqtt_port(process)) as client:
        assert client.send(connect("a")).expect(CONNACK)[1] == 0x88
    channel.exchange_delete("homes")
    with RawMqtt(mqtt_port(process)) as client:
        client.enter("a")
