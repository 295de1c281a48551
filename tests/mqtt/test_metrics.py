"""The metrics of MQTT clients: messages by protocol, connections, sessions, retained messages."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pika

from tests.broker_process import BrokerProcess
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import PUBACK, SUBACK, RawMqtt, packet, publish, subscribe
from tests.mqtt.test_retained import retain, taken

PROTOCOLS = ("amqp091", "mqtt311", "mqtt50")
HTTP = {"SLOTMQ_METRICS__ENABLED": "true", "SLOTMQ_METRICS__PORT": "0", "SLOTMQ_METRICS__SHARED_MS": "0"}


def metrics(process: BrokerProcess) -> dict[str, float]:
    """Return the samples of a scrape by their names and labels."""
    port = next(event["metrics_port"] for event in process.log_events() if event["event"] == "server.started")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_messages_and_clients_are_counted_by_protocol(tmp_path: Path) -> None:
    """Messages of two versions and of AMQP are counted separately, and stay counted after the clients have left."""
    process = mqtt_process(tmp_path / "folder", **HTTP).start()
    port = mqtt_port(process)
    connection = pika.BlockingConnection(pika.URLParameters(process.address.url))
    channel = connection.channel()
    with RawMqtt(port) as five, RawMqtt(port) as four, RawMqtt(port) as reader:
        five.enter("five", properties=b"\x11\x00\x00\x00\x64", clean=False)
        four.enter("four", 4)
        reader.enter("reader", 4)
        five.send(subscribe(1, ("a", 1), ("b", 0))).expect(SUBACK)
        reader.send(subscribe(1, ("a", 1), properties=None)).expect(SUBACK)
        for number in range(1, 4):
            four.send(publish("a", b"x", number, None)).expect(PUBACK)
            assert taken(reader, version=4)[1] == taken(five)[1] == "a"
        five.send(publish("nowhere", b"x")).round_trip()
        channel.basic_publish("amq.topic", "b", b"x")
        assert taken(five, 0)[1] == "b"
        retain(five, "kept", b"12345")
        five.round_trip()
        found = metrics(process)
        connected = [found[f'slotmq_connections{{protocol="{name}"}}'] for name in PROTOCOLS]
        assert connected == [1, 2, 1]
        logins = [found[f'rabbitmq_auth_attempts_succeeded_total{{protocol="{name}"}}'] for name in ("amqp091", "mqtt")]
        assert logins == [1, 3]
        assert found["slotmq_mqtt_sessions_disconnected"] == 0
        assert found['rabbitmq_global_consumers{protocol="mqtt50"}'] == 2
        assert found['rabbitmq_global_publishers{protocol="mqtt311"}'] == 1
        assert found['slotmq_retained_messages{vhost="/"}'] == 1
        assert found['slotmq_retained_bytes{vhost="/"}'] > 5
        five.send(packet(0xE0))
        assert five.ends()
    counted = r'rabbitmq_global_messages_(\w+)_total\{protocol="(\w+)"'
    found = metrics(process)
    by = {match.groups(): int(value) for name, value in found.items() if (match := re.match(counted, name)) and value}
    assert [by.get(("received", name), 0) for name in PROTOCOLS] == [1, 3, 2]
    assert (by["confirmed", "mqtt311"], by["unroutable_dropped", "mqtt50"]) == (3, 2)
    assert (by["delivered_consume_manual_ack", "mqtt311"], by["delivered_consume_manual_ack", "mqtt50"]) == (3, 3)
    assert (by["delivered_consume_auto_ack", "mqtt50"], by["acknowledged", "mqtt50"]) == (1, 3)
    assert ("delivered", "amqp091") not in by
    assert found["slotmq_mqtt_sessions_disconnected"] == 1
    connection.close()
    assert process.terminate() == 0
