"""The options of subscriptions, and what limits the deliveries to a client: aliases, packet ids and its window."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.broker_process import PACKAGE, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import PUBACK, SUBACK, UNSUBACK, RawMqtt, packet, publish, subscribe, text

HOUR = b"\x11\x00\x00\x0e\x10"  # a session expiry of 3,600 s
WITH_HTTP = {"SLOTMQ_HTTP__ENABLED": "true", "SLOTMQ_HTTP__PORT": "0", "SLOTMQ_METRICS__ENABLED": "true",
             "SLOTMQ_METRICS__PORT": "0"}  # fmt: skip
NO_LOCAL, AS_PUBLISHED = 0x04, 0x08


def bindings(process: BrokerProcess, name: str) -> list[tuple[str, Any]]:
    """Return the key and the arguments of each binding of a queue."""
    line = [sys.executable, "-m", "broker", "list", "bindings", "--json", "--data-dir", str(process.folder)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    found = json.loads(subprocess.run(line, check=True, capture_output=True, text=True, env=environment).stdout)
    return [(one["routing_key"], one["arguments"]) for one in found if one["destination"] == name and one["source"]]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_delivery_has_the_identifiers_of_all_matching_subscriptions(
    shared_mqtt: BrokerProcess, enter: Callable[..., RawMqtt], name: str, qos: int
) -> None:
    """A repeated SUBSCRIBE replaces the identifier; an ended subscription has no part in it."""
    client, writer = enter(name), enter(f"{name}-w")

    def identifiers() -> bytes:
        writer.send(publish(f"{name}/a", b"x", 1)).expect(PUBACK)
        got = client.receive()
        assert (got.qos, got.body) == (qos, b"x")
        if qos:
            client.acknowledge(got.packet_id)
        assert client.silent(0.05)
        return got.properties

    client.send(subscribe(1, (f"{name}/+", qos))).expect(SUBACK)
    assert identifiers() == b""
    client.send(subscribe(2, (f"{name}/#", qos), properties=b"\x0b\xc8\x01")).expect(SUBACK)
    assert identifiers() == b"\x0b\xc8\x01"
    client.send(subscribe(3, (f"{name}/+", qos), ("other", qos), properties=b"\x0b\x07")).expect(SUBACK)
    assert identifiers() == b"\x0b\x07\x0b\xc8\x01"
    found = bindings(shared_mqtt, f"mqtt-subscription-{name}qos{qos}")
    assert sorted((key.rpartition(".")[2], one["x-mqtt-subscription-opts"]["id"]) for key, one in found) == [
        ("#", 200),
        ("*", 7),
        ("other", 7),
    ]
    client.send(subscribe(4, (f"{name}/#", qos), properties=b"\x0b\x01")).expect(SUBACK)
    assert identifiers() == b"\x0b\x01\x0b\x07"
    client.send(packet(0xA2, b"\0\5\0", text(f"{name}/+"))).expect(UNSUBACK)
    assert identifiers() == b"\x0b\x01"
    client.send(subscribe(6, (f"{name}/#", qos))).expect(SUBACK)
    assert identifiers() == b""


def test_options_last_with_the_session(enter: Callable[..., RawMqtt], name: str) -> None:
    """A resumed session has its identifiers, and an UNSUBSCRIBE finds the binding with its arguments."""
    first = enter(name, properties=HOUR)
    first.send(subscribe(1, (name, 1 | AS_PUBLISHED), properties=b"\x0b\x05")).expect(SUBACK)
    first.send(packet(0xE0))
    assert first.ends()
    writer = enter(f"{name}-w")
    writer.send(publish(name, b"x", 1, flags=1)).expect(PUBACK)
    second = enter(name, clean=False, properties=HOUR)
    got = second.receive()
    assert (got.properties, got.retain) == (b"\x0b\x05", True)
    second.acknowledge(got.packet_id)
    assert second.send(packet(0xA2, b"\0\2\0", text(name))).expect(UNSUBACK)[-1] == 0
    writer.send(publish(name, b"", 2, flags=1)).expect(PUBACK)
    assert second.silent(0.05)


def test_topic_aliases(enter: Callable[..., RawMqtt], name: str) -> None:
    """The first topics get an alias, over both queues of the client, as many as it takes; then it stands for them."""
    client, writer = enter(name, properties=b"\x22\0\2"), enter(f"{name}-w")
    client.send(subscribe(1, (f"{name}/0/#", 0), (f"{name}/1/#", 1))).expect(SUBACK)
    got = []
    for number, topic in enumerate(["0/a", "1/a", "0/a", "1/b", "1/a", "1/b", "0/a"]):
        writer.send(publish(f"{name}/{topic}", b"%d" % number, 1)).expect(PUBACK)
        got.append(client.receive())
        if got[-1].qos:
            client.acknowledge(got[-1].packet_id)
    first, second, third = f"{name}/0/a", f"{name}/1/a", f"{name}/1/b"
    one, two = b"\x23\0\1", b"\x23\0\2"
    assert [(each.topic, each.properties) for each in got] == [
        (first, one), (second, two), ("", one), (third, b""), ("", two), (third, b""), ("", one),
    ]  # fmt: skip
    assert [each.body for each in got] == [b"%d" % number for number in range(7)]


def test_an_alias_is_told_in_a_packet_that_is_sent(enter: Callable[..., RawMqtt], name: str) -> None:
    """A message that is too large for the client teaches it no alias."""
    client, writer = enter(name, properties=b"\x22\0\5\x27\0\0\0\xff"), enter(f"{name}-w")
    client.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
    writer.send(publish(f"{name}/a", bytes(300), 1), publish(f"{name}/a", b"x", 2))
    assert client.receive()[:2] == (f"{name}/a", b"x")
    writer.send(publish(f"{name}/a", b"y", 3))
    assert client.receive()[:2] == ("", b"y")


@pytest.mark.parametrize("stop", ["kill", "terminate"])
def test_a_packet_id_comes_again_after_a_restart(tmp_path: Path, name: str, stop: str) -> None:
    """Redeliveries have their packet id and DUP; new messages have other ids."""
    process = mqtt_process(tmp_path / "folder").start()
    try:
        with RawMqtt(mqtt_port(process)) as client, RawMqtt(mqtt_port(process)) as writer:
            client.enter(name, properties=HOUR)
            client.send(subscribe(1, (name, 1))).expect(SUBACK)
            writer.enter(f"{name}-w")
            for number in range(1, 6):
                writer.send(publish(name, b"%d" % number, number)).expect(PUBACK)
            before = [client.receive() for _ in range(5)]
            client.acknowledge(before[1].packet_id)
            client.round_trip()
            writer.send(publish("nowhere", b"", 8)).expect(PUBACK)
            writer.send(publish(name, b"6", 9)).expect(PUBACK)  # it follows the ack of 2 to the disk
            before.append(client.receive())
            getattr(process, stop)()
        process.start()
        with RawMqtt(mqtt_port(process)) as client:
            client.enter(name, clean=False, properties=HOUR)
            again = [client.receive() for _ in range(5)]
            assert all(one.dup for one in again)
            wanted = [(one.packet_id, one.body) for one in before if one.body != b"2"]
            assert [(one.packet_id, one.body) for one in again] == wanted
            client.send(publish(name, b"new", 1))
            fresh = [one for one in (client.read(), client.read()) if one[0] & 0xF0 == 0x30]
            assert fresh[0][0] & 0x08 == 0
    finally:
        process.kill()


def test_a_packet_id_in_use_holds_back_the_next_message(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """A message whose packet id is still unacknowledged, 32,767 messages later, comes once that is acknowledged."""
    client, writer = enter(name, properties=HOUR + b"\x21\0\2"), enter(f"{name}-w")
    client.send(subscribe(1, (name, 1))).expect(SUBACK)
    bodies = (b"first", b"second", *[b""] * 32_765, b"last")
    for start in range(0, 32_767, 3_000):
        portion = bodies[start : min(start + 3_000, 32_767)]
        writer.send(*[publish(name, body, 1 + place) for place, body in enumerate(portion)])
        for _ in portion:
            writer.expect(PUBACK)
    first, second = client.receive(), client.receive()
    channel.queue_purge(f"mqtt-subscription-{name}qos1")
    client.acknowledge(second.packet_id)
    writer.send(publish(name, bodies[-1], 1)).expect(PUBACK)
    assert client.silent()
    client.acknowledge(first.packet_id)
    assert client.receive()[1:6:4] == (b"last", first.packet_id)


def test_the_window_is_the_receive_maximum(enter: Callable[..., RawMqtt], name: str) -> None:
    """No more deliveries at QoS 1 are unacknowledged than the client takes; those at QoS 0 do not count."""
    client, writer = enter(name, properties=b"\x21\0\2"), enter(f"{name}-w")
    client.send(subscribe(1, (f"{name}/0", 0), (f"{name}/1", 1))).expect(SUBACK)
    writer.send(*[publish(f"{name}/1", b"%d" % number, 1 + number) for number in range(5)])
    got = [client.receive() for _ in range(2)]
    assert client.silent(0.05)
    writer.send(publish(f"{name}/0", b"x"))
    assert client.receive().qos == 0
    for number in range(2, 5):
        client.acknowledge(got[number - 2].packet_id)
        got.append(client.receive())
        assert client.silent(0.05)
    assert [one.body for one in got] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_slow_client_at_qos_0_loses_its_newest(tmp_path: Path, name: str) -> None:
    """While it is not reading, 10,000 messages wait for it; newer ones are dropped and counted."""
    process = mqtt_process(tmp_path / "folder", **WITH_HTTP).start()
    try:
        with RawMqtt(mqtt_port(process)) as slow, RawMqtt(mqtt_port(process)) as writer:
            slow.enter(name)
            slow.send(subscribe(1, (name, 0))).expect(SUBACK)
            writer.enter(f"{name}-w")
            for start in range(1, 20_001, 1_000):
                numbers = range(start, start + 1_000)
                writer.send(*[publish(name, b"%5d" % number + bytes(1_000)) for number in numbers]).round_trip()
            wait_until(lambda: 0 < waiting(process) <= 10_000, "the newest are dropped")
            dropped = maxlen(process)
            got = [int(slow.receive().body[:5]) for _ in range(20_000 - dropped)]
            assert got == list(range(1, 20_001 - dropped))
            writer.send(publish(name, b"later", 1)).expect(PUBACK)
            assert slow.receive().body == b"later"
            assert maxlen(process) == dropped > 0
    finally:
        process.kill()


def test_paho_gets_what_its_options_say(port: int, enter: Callable[..., RawMqtt], name: str) -> None:
    """A real client of MQTT 5: identifiers of two filters, retain as published, no local, and aliases resolved."""
    received: queue.Queue[Any] = queue.Queue()
    subscribed = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
    client.username_pw_set("guest", "guest")
    client.on_message = lambda _client, _data, message: received.put(message)
    client.on_subscribe = lambda *_arguments: subscribed.set()
    connecting = Properties(PacketTypes.CONNECT)
    connecting.TopicAliasMaximum = 10
    client.connect("127.0.0.1", port, properties=connecting)
    client.loop_start()
    for identifier, topic_filter in ((5, f"{name}/#"), (6, f"{name}/+")):
        subscribed.clear()
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.SubscriptionIdentifier = identifier
        options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True)
        client.subscribe(topic_filter, options=options, properties=properties)
        assert subscribed.wait(DEADLINE_S)
    client.publish(f"{name}/a", b"own", 1).wait_for_publish(DEADLINE_S)
    writer = enter(f"{name}-w")
    writer.send(publish(f"{name}/a", b"1", 1, flags=1)).expect(PUBACK)
    first = received.get(timeout=DEADLINE_S)
    assert (first.payload, first.retain, sorted(first.properties.SubscriptionIdentifier)) == (b"1", True, [5, 6])
    writer.send(publish(f"{name}/a", b"", 2, flags=1)).expect(PUBACK)
    second = received.get(timeout=DEADLINE_S)
    assert second.properties.TopicAlias == first.properties.TopicAlias == 1, "paho leaves aliases to its user"
    assert (second.topic, second.payload) == ("", b"")
    client.disconnect()
    client.loop_stop()


def waiting(process: BrokerProcess) -> int:
    """Return how many messages wait in all queues."""
    return int(sum(one["messages_ready"] for one in api(process, "queues")))


def maxlen(process: BrokerProcess) -> int:
    """Return how many messages were dropped because a queue was too long."""
    [line] = [line for line in fetch(process, "metrics").splitlines() if "lettered_maxlen_total{" in line]
    return int(float(line.rpartition(" ")[2]))


def fetch(process: BrokerProcess, path: str) -> str:
    """Return what the port of the HTTP API or that of the metrics answers."""
    [event] = [event for event in process.log_events() if event["event"] == "server.started"]
    login = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
    port = event["metrics_port" if path == "metrics" else "http_port"]
    with urlopen(Request(f"http://127.0.0.1:{port}/{path}", headers=login)) as answer:
        return str(answer.read().decode())


def api(process: BrokerProcess, path: str) -> Any:
    """Return an answer of the API."""
    return json.loads(fetch(process, f"api/{path}"))
