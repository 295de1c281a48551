"""Limits and policies for every queue, and what they do to the queues of MQTT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pika
import pytest

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.mqtt.raw_mqtt import (
    CONNACK,
    PUBACK,
    PUBLISH,
    PUBREC,
    SUBACK,
    RawMqtt,
    connect,
    packet,
    publish,
    subscribe,
    text,
)

QUOTA_EXCEEDED = 0x97
LASTS = b"\x11\0\0\1\0"


@pytest.fixture
def vhost(shared_mqtt: BrokerProcess, name: str) -> str:
    """Provide a vhost of the test's own."""
    ask(shared_mqtt.folder, "add_vhost", name=name)
    ask(shared_mqtt.folder, "set_permission", user="guest", vhost=name, configure=".*", write=".*", read=".*")
    return name


@pytest.fixture
def enter(port: int, vhost: str) -> Iterator[Callable[..., RawMqtt]]:
    """Provide a function that connects a client to that vhost, and checks the reason code."""
    clients: list[RawMqtt] = []

    def entered(client_id: str, code: int = 0, **options: Any) -> RawMqtt:
        clients.append(client := RawMqtt(port))
        assert client.send(connect(client_id, user=f"{vhost}:guest", **options)).expect(CONNACK)[1] == code
        return client

    yield entered
    for client in clients:
        client.close()


def test_limits_of_the_vhost(shared_mqtt: BrokerProcess, vhost: str, enter: Callable[..., RawMqtt]) -> None:
    """A session queue or a connection over a limit is refused with 0x97, and the client continues."""
    ask(shared_mqtt.folder, "set_vhost_limits", name=vhost, limits={"max-queues": 1, "max-connections": 2})
    client, other = enter("a"), enter("b")
    assert client.send(subscribe(1, ("a", 1), ("b", 1), ("c", 0))).expect(SUBACK)[-3:] == b"\1\1\x97"
    assert other.send(subscribe(1, ("a", 1))).expect(SUBACK)[-1] == QUOTA_EXCEEDED
    enter("c", QUOTA_EXCEEDED)
    other.send(publish("a", b"x", 1)).expect(PUBACK)
    assert client.expect(PUBLISH)[:3] == b"\0\1a"


def test_policies_for_every_queue(shared_mqtt: BrokerProcess, vhost: str, enter: Callable[..., RawMqtt]) -> None:
    """They hold for sessions, which dead-letter what they drop, but not for what MQTT keeps for itself."""
    definition = {"max-length": 2, "message-ttl": 100, "dead-letter-exchange": "amq.fanout", "expires": 60_000}
    policy: dict[str, Any] = {"vhost": vhost, "name": "all", "pattern": "^(?!dead)", "definition": definition}
    ask(shared_mqtt.folder, "set_policy", **policy)
    parameters = pika.URLParameters(shared_mqtt.address.url)
    parameters.virtual_host = vhost
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("dead")
    channel.queue_bind("dead", "amq.fanout")
    will = b"\x05\x18\0\0\0\x01" + text("now/will") + text("w")
    gone = enter("gone", properties=LASTS, will=will, will_flags=0x04)
    session = enter("session", properties=LASTS)
    session.send(subscribe(1, ("kept/#", 1))).expect(SUBACK)
    reader, writer = enter("reader"), enter("writer", clean=False, properties=LASTS)
    reader.send(subscribe(1, ("now/#", 0))).expect(SUBACK)
    session.send(packet(0xE0))
    assert session.ends()
    gone.close()
    for number in range(1, 6):
        writer.send(publish(f"kept/{number}", b"k", number, flags=1)).expect(PUBACK)
    for number in range(1, 4):
        writer.send(packet(0x34, text("now/2"), bytes([0, number, 0]), b"q")).expect(PUBREC)
    dead = [one.routing_key for one, _, _ in islice(channel.consume("dead", inactivity_timeout=15), 5) if one]
    assert dead == [f"kept.{number}" for number in range(1, 6)]
    connection.close()
    writer.close()
    writer = enter("writer", clean=False, properties=LASTS)
    for number in range(1, 4):
        writer.send(packet(0x3C, text("now/2"), bytes([0, number, 0]), b"q")).expect(PUBREC)
    bodies = [reader.expect(PUBLISH)[-1:] for _ in range(4)]
    assert sorted(bodies) == [b"q", b"q", b"q", b"w"]
    reader.round_trip()
    ask(shared_mqtt.folder, "delete_policy", vhost=vhost, name="all")
    reader.send(subscribe(2, ("kept/#", 0))).expect(SUBACK)
    assert sorted([reader.expect(PUBLISH)[2:8] for _ in range(5)]) == [b"kept/%d" % number for number in range(1, 6)]
    session = enter("session", clean=False, properties=LASTS)
    session.send(publish("kept/6", b"k", 1)).read()
    assert session.read()[0] & 0xF0 in (PUBACK, PUBLISH)
