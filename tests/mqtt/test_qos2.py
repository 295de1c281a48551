"""Publishes at QoS 2: each is published once, over connections, restarts and kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.deadline import DEADLINE_S
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    SUBACK,
    RawMqtt,
    connect,
    packet,
    publish,
    pubrel,
    subscribe,
    text,
)

HOUR = b"\x11\x00\x00\x0e\x10"  # a session expiry of 3,600 s
DUP = 0x08
HANDSHAKES = "amq.mqtt.handshakes"


def publish_2(topic: str, body: bytes, packet_id: int, properties: bytes | None = b"", flags: int = 0) -> bytes:
    """Return a PUBLISH packet at QoS 2."""
    octets = publish(topic, body, packet_id, properties, flags)
    return bytes([octets[0] + 2]) + octets[1:]


def bodies(client: RawMqtt, count: int) -> list[bytes]:
    """Return the last octet of each of the next publishes, in order, and acknowledge them."""
    found = []
    for _ in range(count):
        body = client.expect(PUBLISH)
        client.send(packet(0x40, body[2 + int.from_bytes(body[:2], "big") :][:2]))
        found.append(body[-1:])
    return found


def test_reason_codes_of_mqtt_5(tmp_path: Path, name: str) -> None:
    """0x10 when no queue gets a publish, 0x97 from a full queue: then the packet id is free again."""
    process = mqtt_process(tmp_path / "folder").start()  # on which nobody else subscribes to #
    try:
        connection = pika.BlockingConnection(pika.URLParameters(process.address.url))
        channel = connection.channel()
        with RawMqtt(mqtt_port(process)) as writer:
            writer.enter(name, properties=HOUR)
            writer.send(subscribe(1, (f"{name}/b", 0))).expect(SUBACK)
            topics = (f"{name}/a", f"{name}/c", f"{name}/a")
            channel.queue_declare(f"{name}-c")
            channel.queue_bind(f"{name}-c", "amq.topic", f"{name}.c")
            writer.send(*[publish_2(topic, b"x", place + 1) for place, topic in enumerate(topics)])
            assert [writer.expect(PUBREC) for _ in range(3)] == [b"\0\1\x10", b"\0\2", b"\0\3\x10"]
            writer.send(*[publish(topic, b"x", place + 4) for place, topic in enumerate(topics)])
            assert [writer.expect(PUBACK) for _ in range(3)] == [b"\0\4\x10", b"\0\5", b"\0\6\x10"]
            channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
            channel.queue_bind(name, "amq.topic", f"{name}.full")
            writer.send(*[publish_2(f"{name}/full", b"%d" % number, 10 + number) for number in (1, 2)])
            assert [writer.expect(PUBREC) for _ in range(2)] == [b"\0\x0b", b"\0\x0c\x97"]
            assert channel.basic_get(name, auto_ack=True)[2] == b"1"
            assert writer.send(publish_2(f"{name}/full", b"2", 12, flags=DUP)).expect(PUBREC) == b"\0\x0c"
            assert channel.basic_get(name, auto_ack=True)[2] == b"2"
            writer.send(*[publish(f"{name}/full", b"0")] * 4, publish(f"{name}/c", b"x", 20))
            assert writer.expect(PUBACK) == b"\0\x14", "those at QoS 0 get no answer, refused or not"
        connection.close()
    finally:
        process.kill()


@pytest.mark.parametrize("case", ["plain", "expiring", "retained", "tapped", "traced"])
def test_a_publish_that_no_queue_gets_is_answered_with_0x10(tmp_path: Path, case: str) -> None:
    """Publishes are told apart within one read, also those with properties and those that a tap or the trace copies."""
    process = mqtt_process(tmp_path / "folder").start()
    properties = b"\x02\0\0\1\0" if case == "expiring" else b""
    flags = 1 if case == "retained" else 0
    try:
        if case == "tapped":
            ask(process.folder, "tap_add", exchange="amq.topic", pattern="#")
        elif case == "traced":
            ask(process.folder, "set_tracing", on=True)
        with RawMqtt(mqtt_port(process)) as writer:
            writer.enter("writer")
            writer.send(subscribe(1, ("b", 0))).expect(SUBACK)
            for first in (1, 11):  # the second time, routes are cached
                packets = [publish(topic, b"x", first + at, properties, flags) for at, topic in enumerate("abab")]
                packets += [publish_2(topic, b"x", first + 4 + at, properties, flags) for at, topic in enumerate("ab")]
                writer.send(*packets)
                answers = [body for kind, body in (writer.read() for _ in range(9)) if kind & 0xF0 != PUBLISH]
                code = {0: b"\x10", 1: b""}
                assert answers == [bytes((0, first + at)) + code[at % 2] for at in range(6)]
                writer.send(pubrel(first + 4), pubrel(first + 5))
                assert [writer.expect(PUBCOMP) for _ in range(2)] == [bytes((0, first + 4)), bytes((0, first + 5))]
    finally:
        process.kill()


def test_amqp_sees_the_qos(port: int, enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """A header has it, which no MQTT subscriber gets as a user property; retained messages and wills have it, too."""
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.topic", f"{name}.#")
    reader, writer = enter(f"{name}-r"), enter(name)
    writer.send(publish_2(f"{name}/a", b"x", 1, b"\x26\0\1k\0\1v", 1)).expect(PUBREC)
    reader.send(subscribe(1, (f"{name}/#", 0))).expect(SUBACK)
    assert reader.read() == (0x31, text(f"{name}/a") + b"\x07\x26\0\1k\0\1vx")
    _, properties, body = channel.basic_get(name, auto_ack=True)
    headers = {"x-mqtt-publish-qos": 2, "x-mqtt-retain": True, "k": "v"}
    assert (properties.headers, properties.delivery_mode, body) == (headers, 2, b"x")
    with RawMqtt(port) as client:
        client.send(connect(f"{name}-w", will=b"\0" + text(f"{name}/will") + text("bye"), will_flags=0x14))
        client.expect(CONNACK)
    assert reader.expect(PUBLISH).endswith(b"bye")
    assert channel.basic_get(name, auto_ack=True)[1].headers == {"x-mqtt-publish-qos": 2}


def test_too_many_unfinished_publishes(enter: Callable[..., RawMqtt], name: str) -> None:
    """More than the receive maximum without a PUBREL end the connection with 0x93; as many do not."""
    writer = enter(name)
    writer.send(*[publish_2(name, b"", number) for number in range(1, 4097)])
    for _ in range(4096):
        writer.expect(PUBREC)
    writer.send(pubrel(1)).expect(PUBCOMP)
    writer.send(publish(name, b"", 1)).expect(PUBACK)
    writer.send(publish_2(name, b"", 1)).expect(PUBREC)
    assert writer.send(publish_2(name, b"", 4097)).expect(DISCONNECT)[0] == 0x93


def test_handshakes_end_with_their_session(port: int, enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """A clean start, an expiry of 0 and the end of the expiry forget what was not released; a session keeps it."""

    def kept() -> int:
        return int(channel.queue_declare(HANDSHAKES, passive=True).method.message_count)

    channel.queue_declare(name)
    channel.queue_bind(name, "amq.topic", name)

    def again(clean: bool, properties: bytes) -> tuple[bool, bool]:
        """Return whether the session is there, and whether a repeated publish is published."""
        with RawMqtt(port) as client:
            present = client.enter(name, clean=clean, properties=properties)[0] == 1
            client.send(publish_2(name, b"x", 1, flags=DUP)).expect(PUBREC)
            return present, channel.basic_get(name, auto_ack=True)[2] is not None

    with RawMqtt(port) as client:
        client.enter(name, properties=HOUR)
        client.send(publish_2(name, b"x", 1)).expect(PUBREC)
    assert channel.basic_get(name, auto_ack=True)[2] == b"x"
    before = kept()
    assert again(False, HOUR) == (True, False)
    assert again(True, HOUR) == (False, True)
    assert kept() == before
    assert again(False, b"\x11\0\0\0\x01") == (True, False)
    reader = enter(f"{name}-r")
    for _ in range(100):
        if kept() < before or not reader.silent(0.1):
            break
    assert kept() == before - 1
    assert again(False, b"") == (False, True)
    assert again(False, b"") == (False, True)
    assert kept() == before - 1


@contextmanager
def killed(folder: Path, name: str) -> Iterator[tuple[BrokerProcess, Callable[[], list[bytes]]]]:
    """Provide a broker with a session that subscribes to `name`, and a function that returns what it got at the end."""
    process = mqtt_process(folder).start()
    try:
        with RawMqtt(mqtt_port(process)) as reader:
            reader.enter(f"{name}-r", properties=HOUR)
            reader.send(subscribe(1, (name, 1))).expect(SUBACK)

        def got() -> list[bytes]:
            with RawMqtt(mqtt_port(process)) as writer:
                writer.enter(f"{name}-end")
                writer.send(publish(name, b"!", 1)).expect(PUBACK)
            with RawMqtt(mqtt_port(process)) as reader:
                reader.enter(f"{name}-r", clean=False, properties=HOUR)
                found = []
                while (one := bodies(reader, 1)[0]) != b"!":
                    found.append(one)
                return found

        yield process, got
    finally:
        process.kill()


@pytest.mark.parametrize("step", ["publish sent", "PUBREC received", "PUBREL sent", "PUBCOMP received"])
def test_a_kill_neither_loses_nor_doubles(tmp_path: Path, name: str, step: str) -> None:
    """Wherever the kill falls, the client continues with what it knows, and each message is published once."""
    with killed(tmp_path / "folder", name) as (process, got):
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, properties=HOUR)
            client.send(publish_2(name, b"1", 1), publish_2(name, b"2", 2))
            if step != "publish sent":
                assert [client.expect(PUBREC) for _ in range(2)] == [b"\0\1", b"\0\2"]
            if step.startswith("PUB") and step[3:6] in ("REL", "COM"):
                client.send(pubrel(1))
            if step == "PUBCOMP received":
                assert client.expect(PUBCOMP) == b"\0\1"
            process.kill()
        process.start()
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, clean=False, properties=HOUR)
            if step in ("publish sent", "PUBREC received"):  # as if the PUBREC had been lost on its way
                client.send(publish_2(name, b"1", 1, flags=DUP), publish_2(name, b"2", 2, flags=DUP))
                assert [client.expect(PUBREC) for _ in range(2)] == [b"\0\1", b"\0\2"]
            if step != "PUBCOMP received":
                assert client.send(pubrel(1)).expect(PUBCOMP)[:2] == b"\0\1"
            assert client.send(pubrel(2)).expect(PUBCOMP) == b"\0\2"
            client.send(publish_2(name, b"3", 1), publish_2(name, b"4", 2))
            assert [client.expect(PUBREC) for _ in range(2)] == [b"\0\1", b"\0\2"]
        assert got() == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
def test_paho_publishes_at_qos_2(port: int, name: str, channel: Any, version: MQTTProtocolVersion) -> None:
    """Each message reaches AMQP once, in order, also with more of them than paho has in flight."""
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.topic", name)
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=version)
    client.username_pw_set("guest", "guest")
    client.connect("127.0.0.1", port)
    client.loop_start()
    waiting = [client.publish(name, b"%d" % number, 2) for number in range(100)]
    for one in waiting:
        one.wait_for_publish(DEADLINE_S)
    client.disconnect()
    client.loop_stop()
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in range(100)] == [b"%d" % number for number in range(100)]
    assert channel.basic_get(name, auto_ack=True)[2] is None
