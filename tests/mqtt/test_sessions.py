"""MQTT sessions: what lasts over connections, restarts and kills, and what ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import (
    CONNACK,
    DISCONNECT,
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
GOODBYE = packet(0xE0)
PUBREC = 0x50


def present(client: RawMqtt, *packets: bytes) -> bool:
    """Send a CONNECT, and return whether the CONNACK says that a session is present."""
    body = client.send(*packets).expect(CONNACK)
    assert body[1] == 0, body
    return body[0] == 1


def test_connack_tells_the_expiry_in_force(port: int, enter: Callable[..., RawMqtt], name: str) -> None:
    """An expiry over the limit is cut to a day."""
    forever = b"\x11\xff\xff\xff\xff"
    with RawMqtt(port) as client:
        assert b"\x11\x00\x01\x51\x80" in client.enter(name, properties=forever)


def test_a_session_that_ends_with_its_connection_ends_with_the_broker(tmp_path: Path, name: str) -> None:
    """A lasting session that is resumed without an expiry is gone after a kill, with its unfinished handshakes."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, properties=HOUR)
            client.send(subscribe(1, (name, 1))).expect(SUBACK)
            client.send(packet(0x34, text("other"), b"\0\7\0", b"1")).expect(PUBREC)
        with RawMqtt(mqtt_port(process)) as client:
            assert present(client, connect(name, clean=False))
            process.kill()
        process.start()
        with RawMqtt(mqtt_port(process)) as client:
            assert not present(client, connect(name, clean=False, properties=HOUR))
        names = [row["name"] for row in ask(process.folder, "list_queues")]
        assert not [one for one in names if name in one]
    finally:
        process.kill()


def test_a_resumed_session_takes_the_new_expiry(tmp_path: Path, name: str) -> None:
    """The expiry of CONNECT and that of DISCONNECT count from then on, also over a kill; 0 ends the session."""
    process = mqtt_process(tmp_path / "folder").start()

    def lasts(seconds: int) -> bool:
        connection = pika.BlockingConnection(pika.URLParameters(process.address.url))
        arguments = {"x-queue-type": "classic", "x-expires": seconds * 1000}
        try:
            connection.channel().queue_declare(f"mqtt-subscription-{name}qos1", durable=True, arguments=arguments)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        finally:
            connection.close()
        return True

    def visit(expiry: bytes, goodbye: bytes = GOODBYE) -> bool:
        with RawMqtt(mqtt_port(process)) as client:
            there = present(client, connect(name, clean=False, properties=expiry))
            if not there:
                client.send(subscribe(1, (name, 1))).expect(SUBACK)
            assert client.send(goodbye).ends()
            return there

    try:
        assert not visit(HOUR)
        assert lasts(3600)
        assert visit(b"\x11\x00\x00\x07\x08")
        assert lasts(1800)
        assert visit(HOUR, packet(0xE0, b"\x00\x05\x11\x00\x00\x07\x08"))
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(f"{name}-2", properties=HOUR)
            client.send(subscribe(1, (name, 1))).expect(SUBACK)  # follows what came before to the disk
        process.kill()
        process.start()
        assert lasts(1800)
        assert visit(HOUR)
        process.terminate()
        process.start()
        assert lasts(3600)
        assert visit(b"")
        assert not visit(HOUR)
    finally:
        process.kill()


def test_a_subscription_moves_with_its_qos(enter: Callable[..., RawMqtt], name: str) -> None:
    """The same filter again replaces the subscription: one copy arrives, at the new QoS."""
    client = enter(name)
    writer = enter(f"{name}-w")
    for packet_id, qos in ((1, 0), (2, 1), (3, 0)):
        assert client.send(subscribe(packet_id, (name, qos))).expect(SUBACK)[-1] == qos
        writer.send(publish(name, b"x", 1)).expect(PUBACK)
        first, body = client.read()
        assert first == 0x30 | 2 * qos
        assert body.endswith(b"x")
        assert client.silent(0.05)
        if qos:
            client.send(packet(0x40, body[len(text(name)) :][:2]))
    codes = client.send(packet(0xA2, b"\0\7\0", text(name), text("never"))).expect(UNSUBACK)[-2:]
    assert codes == b"\x00\x11"
    writer.send(publish(name, b"y", 2)).expect(PUBACK)
    assert client.silent()


def test_acknowledged_messages_survive_a_kill(tmp_path: Path, name: str) -> None:
    """After kill -9, a session has its subscriptions and every message whose PUBACK arrived, and no other."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as reader:
            reader.enter(name, 4, clean=False)
            reader.send(subscribe(1, (f"{name}/#", 1), (f"{name}-low", 0), properties=None)).expect(SUBACK)
        with RawMqtt(mqtt_port(process)) as writer:
            writer.enter(f"{name}-w")
            writer.send(*[publish(f"{name}/a", b"%d" % number, number) for number in range(1, 301)])
            for _ in range(300):
                writer.expect(PUBACK)
            process.kill()
        process.start()
        with RawMqtt(mqtt_port(process)) as reader, RawMqtt(mqtt_port(process)) as writer:
            assert present(reader, connect(name, 4, clean=False))
            bodies = []
            for _ in range(300):
                body = reader.expect(PUBLISH)[len(text(f"{name}/a")) :]
                bodies.append(int(body[2:]))
                reader.send(packet(0x40, body[:2]))
            assert bodies == list(range(1, 301))
            writer.enter(f"{name}-w")
            writer.send(publish(f"{name}-low", b"again", 1)).expect(PUBACK)
            assert reader.expect(PUBLISH).endswith(b"again")
    finally:
        process.kill()


@pytest.mark.parametrize("stop", ["kill", "terminate"])
def test_a_session_survives_a_restart(tmp_path: Path, name: str, stop: str) -> None:
    """Unacknowledged deliveries arrive again; acknowledged ones do not."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, properties=HOUR)
            client.send(subscribe(1, (name, 1))).expect(SUBACK)
            client.send(publish(name, b"1", 1), publish(name, b"2", 2))
            found = [client.read() for _ in range(4)]
            got = {body[-1:]: body for first, body in found if first & 0xF0 == PUBLISH}
            client.send(packet(0x40, got[b"1"][len(text(name)) :][:2])).round_trip()
            client.send(publish("nowhere", b"", 3)).expect(PUBACK)
            client.send(publish(name, b"3", 4))  # its PUBACK follows the ack of 1 to the disk
            assert {client.read()[0] & 0xF0 for _ in range(2)} == {PUBLISH, PUBACK}
            getattr(process, stop)()
        process.start()
        with RawMqtt(mqtt_port(process)) as client:
            assert present(client, connect(name, clean=False, properties=HOUR))
            assert [client.expect(PUBLISH)[-1:] for _ in range(2)] == [b"2", b"3"]
            assert client.silent()
    finally:
        process.kill()


def test_deleting_a_session_queue_ends_the_connection(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """A client whose queue an operator deletes is told that, instead of waiting for messages that cannot come."""
    client = enter(name, properties=HOUR)
    client.send(subscribe(1, (name, 1))).expect(SUBACK)
    queue = f"mqtt-subscription-{name}qos1"
    channel.queue_delete(queue)
    farewell = client.expect(DISCONNECT)
    assert farewell[0] == 0x98
    assert farewell.endswith(f"queue '{queue}' was deleted".encode())
    assert client.ends()


@pytest.mark.parametrize("cause", ["drained", "revoked"])
def test_cancelling_the_consumer_of_a_session_ends_the_connection(
    port: int, shared_mqtt: BrokerProcess, name: str, cause: str
) -> None:
    """A client that may not consume any more is told so, and not that its queue was deleted."""
    queue, folder = f"mqtt-subscription-{name}qos1", shared_mqtt.folder
    ask(folder, "add_user", name=name, password="s3cret")
    ask(folder, "set_permission", user=name, vhost="/", configure=".*", write=".*", read=".*")
    with RawMqtt(port) as client:
        present(client, connect(name, user=name, password="s3cret", properties=HOUR))
        client.send(subscribe(1, (name, 1))).expect(SUBACK)
        if cause == "drained":
            ask(folder, "drain", queue=queue)
        else:
            ask(folder, "set_permission", user=name, vhost="/", configure=".*", write=".*", read="")
        farewell = client.expect(DISCONNECT)
        assert farewell[0] == 0x98
        assert farewell.endswith(f"the consumer of queue '{queue}' was cancelled".encode())
        assert client.ends()


def will(name: str, body: bytes, properties: bytes = b"") -> dict[str, Any]:
    """Return the options of a CONNECT with a will at QoS 1."""
    return {"will": bytes([len(properties)]) + properties + text(name) + text(body), "will_flags": 0x0C}


@pytest.mark.parametrize(
    ("farewell", "published"),
    [(packet(0xE0), False), (packet(0xE0, b"\0"), False), (packet(0xE0, b"\x04"), True), (packet(0xE0, b"\x80"), True)],
    ids=["none", "0x00", "0x04", "0x80"],
)
def test_only_a_normal_disconnect_discards_the_will(
    port: int, enter: Callable[..., RawMqtt], name: str, farewell: bytes, published: bool
) -> None:
    """A DISCONNECT with an error of the client publishes the will, as RabbitMQ does."""
    reader = enter(f"{name}-r")
    reader.send(subscribe(1, (name, 0))).expect(SUBACK)
    with RawMqtt(port) as client:
        client.send(connect(f"{name}-w", **will(name, b"bye"))).expect(CONNACK)
        assert client.send(farewell).ends()
    if published:
        assert reader.expect(PUBLISH).endswith(b"bye")
    reader.round_trip()


def delayed(name: str, body: bytes, seconds: int, flags: int = 0x0C, topic: str = "w") -> dict[str, Any]:
    """Return the options of a CONNECT of a session that lasts with a delayed will."""
    properties = b"\x18" + seconds.to_bytes(4, "big") + b"\x26\0\1k\0\1v\x26\0\1k\0\1v"
    octets = bytes([len(properties)]) + properties + text(f"{name}/{topic}") + text(body)
    return {"clean": False, "properties": HOUR, "will": octets, "will_flags": flags}


def left_by(port: int, client_id: str, **options: Any) -> None:
    """Connect, and close the socket without a DISCONNECT."""
    with RawMqtt(port) as client:
        client.send(connect(client_id, **options)).expect(CONNACK)


@pytest.mark.parametrize("stop", ["kill", "terminate"])
def test_delayed_wills_survive_a_restart(tmp_path: Path, name: str, stop: str) -> None:
    """After a stop or a kill, a will is published at its time, and a new connection cancels it."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        for number in (1, 2):
            left_by(mqtt_port(process), f"{name}-{number}", **delayed(name, b"%d" % number, 3, 0x2C, f"{number}"))
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(f"{name}-r", properties=HOUR)
            client.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
            client.send(publish(f"{name}/x", b"x", 1))
            assert {client.read()[0] & 0xF0 for _ in range(2)} == {PUBLISH, PUBACK}  # the wills are on disk, too
        getattr(process, stop)()
        process.start()
        left_by(mqtt_port(process), f"{name}-1", clean=False, properties=HOUR)
        with RawMqtt(mqtt_port(process)) as client:
            assert present(client, connect(f"{name}-r", clean=False, properties=HOUR))
            assert [client.expect(PUBLISH)[-1:] for _ in range(2)] == [b"x", b"2"]
            assert client.silent(0.1)
            client.send(subscribe(1, (f"{name}/#", 0))).expect(SUBACK)
            assert client.read()[0] == 0x31
    finally:
        process.kill()


def test_an_alarm_does_not_end_a_blocked_client(tmp_path: Path, name: str) -> None:
    """A client that an alarm blocks is not read, so its silence does not count; one that only reads continues."""
    process = mqtt_process(tmp_path / "folder", SLOTMQ_MEMORY__ALARM_BYTES="1").start()
    try:
        with RawMqtt(mqtt_port(process)) as blocked, RawMqtt(mqtt_port(process)) as reader:
            reader.enter(f"{name}-r")
            blocked.send(connect(name, keep_alive_s=1)).expect(CONNACK)
            blocked.send(publish(name, b"x", 1)).expect(PUBACK)
            assert blocked.send(publish(name, b"x", 2), packet(0xC0)).silent(3.5)
            reader.round_trip()
    finally:
        process.kill()


def test_a_will_survives_the_stop_of_the_broker(tmp_path: Path, name: str) -> None:
    """A broker that stops publishes the wills of its clients, to sessions that last."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as reader:
            reader.enter(name, properties=HOUR)
            reader.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
        with RawMqtt(mqtt_port(process)) as client:
            client.send(connect(f"{name}-w", **will(f"{name}/will", b"stopped"))).expect(CONNACK)
            client.round_trip()
            process.terminate()
        process.start()
        with RawMqtt(mqtt_port(process)) as reader:
            assert present(reader, connect(name, clean=False, properties=HOUR))
            assert reader.expect(PUBLISH).endswith(b"stopped")
    finally:
        process.kill()
