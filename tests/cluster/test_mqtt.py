"""MQTT clients of two nodes: a session, and the connection that has a client id, are the same on both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.cli.control_client import ask
from tests.cluster.two_nodes import Nodes
from tests.deadline import DEADLINE_S, wait_until
from tests.mqtt.conftest import WITH_MQTT, mqtt_port
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
SETTINGS = {**WITH_MQTT, "SLOTMQ_MQTT__RETAINED_MAX_BYTES": "20000"}


@pytest.fixture(scope="module")
def mqtt_nodes(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, _schemas: list[str]) -> Iterator[Nodes]:
    """Provide two nodes with MQTT listeners."""
    _schemas.append("slotmq_test_mqtt")
    folder = tmp_path_factory.mktemp("mqtt_nodes")
    with Nodes(folder, postgres_url, _schemas[-1], "a", "b", lease_ms=1500, environment=SETTINGS) as both:
        yield both


@pytest.fixture
def nodes(mqtt_nodes: Nodes) -> Iterator[Nodes]:
    """Provide the nodes without queues; a test may kill one."""
    yield mqtt_nodes
    mqtt_nodes.renew()


@pytest.fixture
def enter(nodes: Nodes) -> Iterator[Callable[..., RawMqtt]]:
    """Provide a function that connects a raw client to a node."""
    clients: list[RawMqtt] = []

    def entered(node: str, client_id: str, *, present: bool = False, **options: Any) -> RawMqtt:
        client = RawMqtt(mqtt_port(nodes.by_name[node]))
        clients.append(client)
        body = client.send(connect(client_id, **options)).expect(CONNACK)
        assert body[:2] == bytes((present, 0)), body
        return client

    yield entered
    for client in clients:
        client.close()


def body_of(octets: bytes, topic: str) -> bytes:
    """Return the body of a publish at QoS 1 without properties."""
    return octets[len(text(topic)) + 3 :]


def test_a_session_is_found_on_the_other_node(enter: Callable[..., RawMqtt], name: str) -> None:
    """Subscriptions and missed messages are there, those without a PUBACK come again, and an UNSUBSCRIBE counts."""
    first = enter("a", name, clean=False, properties=HOUR)
    assert first.send(subscribe(1, (f"{name}/#", 1), (f"{name}-low", 0))).expect(SUBACK)[-2:] == b"\x01\x00"
    writer = enter("b", f"{name}-w")
    for number in (1, 2):
        writer.send(publish(f"{name}/a", b"%d" % number, number)).expect(PUBACK)
    got = [first.expect(PUBLISH) for _ in range(2)]
    assert [body_of(one, f"{name}/a") for one in got] == [b"1", b"2"]
    first.send(packet(0x40, got[0][len(text(f"{name}/a")) :][:2])).round_trip()
    assert first.send(GOODBYE).ends()
    writer.send(publish(f"{name}/a", b"3", 3)).expect(PUBACK)
    second = enter("b", name, present=True, clean=False, properties=HOUR)
    again = sorted([second.read() for _ in range(2)], key=lambda one: one[1][-1:])
    assert [(first & 0x08, body[-1:]) for first, body in again] == [(8, b"2"), (0, b"3")]
    writer.send(publish(f"{name}-low", b"low", 4)).expect(PUBACK)
    assert second.expect(PUBLISH).endswith(b"low")
    assert second.send(packet(0xA2, b"\0\7\0", text(f"{name}-low"), text("never"))).expect(UNSUBACK)[-2:] == b"\0\x11"
    writer.send(publish(f"{name}-low", b"low", 5)).expect(PUBACK)
    assert second.silent(0.1)
    third = enter("a", name, clean=True)
    assert second.expect(DISCONNECT)[0] == 0x8E
    writer.send(publish(f"{name}/a", b"4", 6)).expect(PUBACK)
    assert third.silent(0.1)


@pytest.mark.parametrize("expiry", [HOUR, b""], ids=["lasting", "clean"])
@pytest.mark.parametrize("nodes_of", ["ab", "aa"])
def test_a_newer_connection_takes_over(enter: Callable[..., RawMqtt], name: str, expiry: bytes, nodes_of: str) -> None:
    """The older connection gets DISCONNECT 0x8E before the newer one is accepted, and only that one gets messages."""
    first = enter(nodes_of[0], name, properties=expiry)
    first.send(subscribe(1, (name, 1))).expect(SUBACK)
    second = enter(nodes_of[1], name, present=bool(expiry), clean=False, properties=expiry)
    assert first.expect(DISCONNECT)[0] == 0x8E
    assert first.ends()
    assert second.send(subscribe(1, (name, 1))).expect(SUBACK)[-1] == 1
    writer = enter("a", f"{name}-w")
    writer.send(publish(name, b"x", 1)).expect(PUBACK)
    assert body_of(second.expect(PUBLISH), name) == b"x"
    second.send(GOODBYE)
    assert second.ends()
    enter(nodes_of[0], name, present=bool(expiry), clean=False, properties=expiry)


def test_a_client_that_waits_for_its_id_may_leave(nodes: Nodes, enter: Callable[..., RawMqtt], name: str) -> None:
    """A connection that ends before it has its client id keeps it from no one."""
    held = enter("a", name)
    for _ in range(3):
        with RawMqtt(mqtt_port(nodes.by_name["b"])) as hasty:
            hasty.send(connect(name))
    assert held.expect(DISCONNECT)[0] == 0x8E
    enter("a", name)


class Keeper:
    """A paho client that notes what it receives, and connects to any node again."""

    def __init__(self, client_id: str) -> None:
        self.bodies: list[bytes] = []
        self.client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.username_pw_set("guest", "guest")
        self.client.on_message = self._note
        self.subscribed = subscribed = threading.Event()
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.properties = Properties(PacketTypes.CONNECT)
        self.properties.SessionExpiryInterval = 3600

    def _note(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self.bodies.append(bytes(message.payload))

    def connect(self, port: int) -> None:
        """Connect, and run the client's thread."""
        self.client.connect("127.0.0.1", port, clean_start=False, properties=self.properties)
        self.client.loop_start()

    def stop(self) -> None:
        """End the thread."""
        self.client.disconnect()
        self.client.loop_stop()


def test_what_was_acknowledged_survives_the_death_of_a_node(nodes: Nodes, name: str) -> None:
    """A client of a node that is killed finds its session on the other one, with each message that has its PUBACK."""
    ports = {node: mqtt_port(nodes.by_name[node]) for node in "ab"}
    keeper, again, writer = Keeper(name), Keeper(name), Keeper(f"{name}-w")
    try:
        keeper.connect(ports["a"])
        keeper.client.subscribe(f"{name}/#", qos=1)
        assert keeper.subscribed.wait(DEADLINE_S)
        writer.connect(ports["b"])
        sent = [writer.client.publish(f"{name}/x", b"%d" % number, qos=1) for number in range(200)]
        nodes.by_name["a"].kill()
        sent += [writer.client.publish(f"{name}/x", b"%d" % number, qos=1) for number in range(200, 300)]
        for one in sent:
            one.wait_for_publish(DEADLINE_S)
        again.connect(ports["b"])
        expected = {b"%d" % number for number in range(300)}
        wait_until(lambda: {*keeper.bodies, *again.bodies} == expected, "all messages")
    finally:
        for client in (keeper, again, writer):
            client.stop()


def assert_retained(client: RawMqtt, expected: dict[str, bytes], *filters: str) -> None:
    """Subscribe, and check the retained messages by topic: they arrive once, marked, and no others do."""
    client.send(subscribe(1, *[(one, 1) for one in filters])).expect(SUBACK)
    found: dict[str, bytes] = {}
    for _ in expected:
        first, body = client.read()
        assert first == 0x33, f"0x{first:02x} {body!r}"
        stop = 2 + int.from_bytes(body[:2], "big")
        found[body[2:stop].decode()] = body[stop + 3 :]
        client.send(packet(0x40, body[stop : stop + 2]))
    assert found == expected
    assert client.silent(0.1)


def retain(client: RawMqtt, topic: str, body: bytes, properties: bytes = b"") -> bytes:
    """Retain a message, and return its PUBACK."""
    return client.send(publish(topic, body, 7, properties, flags=1)).expect(PUBACK)


def test_retained_messages_are_the_same_on_both_nodes(nodes: Nodes, enter: Callable[..., RawMqtt], name: str) -> None:
    """The other node finds by wildcard at once what one acknowledges: replaced, deleted, and after both are killed."""
    one, other = enter("a", f"{name}-1"), enter("b", f"{name}-2")
    for number in range(150):
        retain(one, f"{name}/{number}/state", b"%d" % number)
    topics = {f"{name}/{number}/state": b"%d" % number for number in range(150)}
    assert_retained(enter("b", f"{name}-3"), topics, f"{name}/+/state")
    retain(other, f"{name}/3/state", b"replaced")
    retain(other, f"{name}/4/state", b"")
    retain(one, f"{name}/brief/state", b"x", b"\x02\0\0\0\0")
    topics[f"{name}/3/state"] = b"replaced"
    del topics[f"{name}/4/state"]

    assert_retained(enter("a", f"{name}-4"), topics, f"{name}/#")
    retain(one, f"{name}/4/state", b"back")
    assert_retained(enter("b", f"{name}-5"), {f"{name}/4/state": b"back"}, f"{name}/4/#")
    for node in nodes.by_name.values():
        node.kill()
    for node in nodes.by_name.values():
        node.start()
    topics[f"{name}/4/state"] = b"back"
    assert_retained(enter("b", f"{name}-6"), topics, f"{name}/#")


def queues_of(nodes: Nodes, client_id: str) -> list[str]:
    """Return the queues of a client, as node b has them."""
    return [row["name"] for row in ask(nodes.by_name["b"].folder, "list_queues") if f"-{client_id}qos" in row["name"]]


def test_a_session_ends_on_both_nodes(nodes: Nodes, enter: Callable[..., RawMqtt], name: str) -> None:
    """A DISCONNECT with an expiry of 0 deletes the session though the client closes at once; another one expires."""
    for node, other in ("ab", "ba"):
        client = enter(node, name, properties=HOUR)
        client.send(subscribe(1, (name, 1), (f"{name}-low", 0))).expect(SUBACK)
        client.send(packet(0xE0, b"\x00\x05\x11\x00\x00\x00\x00")).close()
        enter(other, name, clean=False).send(GOODBYE)
    brief = enter("a", f"{name}-brief", properties=HOUR)
    brief.send(subscribe(1, (name, 1)), GOODBYE).expect(SUBACK)
    assert brief.ends()
    enter("b", f"{name}-brief", present=True, clean=False, properties=b"\x11\0\0\0\1").send(GOODBYE)
    wait_until(lambda: queues_of(nodes, f"{name}-brief") == [], "the expiry")


def test_what_may_not_be_retained_is_not(nodes: Nodes, enter: Callable[..., RawMqtt], name: str) -> None:
    """A topic that the user may not write, and a message over the bounds, end the connection, and nothing is kept."""
    folder = nodes.by_name["a"].folder
    ask(folder, "add_user", name=name, password="secret", tags=[])
    ask(folder, "set_permission", user=name, vhost="/", configure="", write=".*", read="")
    ask(folder, "set_topic_permission", user=name, vhost="/", exchange="amq.topic", write="^allowed", read="")
    allowed = enter("b", f"{name}-1", user=name, password="secret")
    assert allowed.send(publish(f"allowed/{name}", b"x", 1, flags=1)).expect(PUBACK)
    assert allowed.send(publish(f"{name}/forbidden", b"x", 2, flags=1)).expect(DISCONNECT)[0] == 0x87
    large = enter("a", f"{name}-2")
    assert large.send(publish(f"{name}/large", bytes(20_000), 3, flags=1)).expect(DISCONNECT)[0] == 0x97
    assert_retained(enter("a", f"{name}-3"), {f"allowed/{name}": b"x"}, f"{name}/#", f"allowed/{name}")


def test_a_cluster_has_no_qos_2_and_no_delayed_wills(nodes: Nodes, enter: Callable[..., RawMqtt], name: str) -> None:
    """CONNACK says so, a subscription gets QoS 1, and what uses them is refused."""
    port = mqtt_port(nodes.by_name["a"])
    with RawMqtt(port) as client:
        assert b"\x24\x01" in client.send(connect(name)).expect(CONNACK)
        assert client.send(subscribe(1, (name, 2))).expect(SUBACK)[-1] == 1
        assert client.send(packet(0x34, text(name), b"\0\2\0x")).expect(DISCONNECT)[0] == 0x9B
    for will, flags, code in ((b"\0", 0x14, 0x9B), (b"\5\x18\0\0\0\1", 0x04, 0x83)):
        with RawMqtt(port) as client:
            sent = connect(name, properties=HOUR, will=will + text(name) + text("x"), will_flags=flags)
            assert client.send(sent).expect(CONNACK)[1] == code


def test_shared_subscriptions_and_options_are_the_same_on_both_nodes(
    nodes: Nodes, enter: Callable[..., RawMqtt], name: str
) -> None:
    """Clients of both nodes share what is published; a session that moves takes its shares and options along."""
    share = f"$share/g/{name}/s"
    lasting = {"clean": False, "properties": HOUR}
    one, other = enter("a", f"{name}-1", **lasting), enter("b", f"{name}-2", **lasting)
    for client in (one, other):
        assert client.send(subscribe(1, (share, 1))).expect(SUBACK)[-1] == 1
    assert one.send(subscribe(2, (f"{name}/o", 1), properties=b"\x0b\x07")).expect(SUBACK)[-1] == 1
    assert one.send(subscribe(3, (f"{name}/o", 1), properties=b"\x0b\x09")).expect(SUBACK)[-1] == 1
    writer = enter("a", f"{name}-w")
    assert other.send(GOODBYE).ends()
    for number in range(20):
        assert writer.send(publish(f"{name}/s", b"%d" % number, number + 1)).expect(PUBACK)
    bodies = set()
    for _ in range(20):
        body = one.expect(PUBLISH)[len(text(f"{name}/s")) :]
        bodies.add(body[3:])
        one.send(packet(0x40, body[:2]))
    assert bodies == {b"%d" % number for number in range(20)}
    assert one.send(GOODBYE).ends()
    moved = enter("b", f"{name}-1", present=True, **lasting)
    writer.send(publish(f"{name}/s", b"s", 30)).expect(PUBACK)
    assert body_of(moved.expect(PUBLISH), f"{name}/s") == b"s"
    writer.send(publish(f"{name}/o", b"o", 31)).expect(PUBACK)
    assert body_of(moved.expect(PUBLISH), f"{name}/o").endswith(b"\x0b\x09o")
    assert moved.send(packet(0xA2, b"\0\7\0", text(share), text(f"{name}/o"))).expect(UNSUBACK)[-2:] == b"\0\0"
    enter("a", f"{name}-1", clean=True)
    assert moved.expect(DISCONNECT)[0] == 0x8E
    assert queues_of(nodes, f"{name}-1") == []


def test_mqtt_needs_the_functions_of_this_version(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """A node whose cluster has those of an older version says so at the start, as long as an older node runs."""
    with Nodes(tmp_path, postgres_url, schema, "a") as older:

        async def drop() -> None:
            connection = await asyncpg.connect(postgres_url)
            await connection.execute(f'DROP FUNCTION "{schema}".claim_clients')
            await connection.close()

        asyncio.run(drop())
        newer = Nodes(tmp_path, postgres_url, schema, "b", environment=SETTINGS).by_name["b"]
        newer.spawn()
        assert newer.wait() == 2
        assert "do not support MQTT" in newer.stderr()
        assert older.by_name["a"].alive
