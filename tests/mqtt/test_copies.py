"""Sessions and retained messages in copies: a backup of the data folder, and definitions of another broker."""

from __future__ import annotations

from pathlib import Path

import pika

from broker.cli.control_client import ask
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import PUBACK, SUBACK, RawMqtt, packet, publish, subscribe
from tests.mqtt.test_retained import HOUR, amqp_channel, retain, taken


def test_a_backup_has_sessions_and_retained_messages(tmp_path: Path) -> None:
    """A broker on the copy retains what was retained, and delivers what waited for a client."""
    process = mqtt_process(tmp_path / "folder").start()
    with RawMqtt(mqtt_port(process)) as client:
        client.enter("panel", clean=False, properties=HOUR)
        client.send(subscribe(1, ("home/#", 1))).expect(SUBACK)
        assert client.send(packet(0xE0)).ends()
    with RawMqtt(mqtt_port(process)) as client:
        client.enter("sensor")
        retain(client, "car", b"kept")
        client.send(publish("home/hall", b"waiting", 1)).expect(PUBACK)
    ask(process.folder, "backup", target=str(tmp_path / "copy"))
    assert process.terminate() == 0
    copy = mqtt_process(tmp_path / "copy").start()
    with RawMqtt(mqtt_port(copy)) as client:
        assert client.enter("panel", clean=False, properties=HOUR)[0] == 1  # the session is there
        assert taken(client)[1:] == ("home/hall", b"waiting")
        client.send(subscribe(2, ("car", 1))).expect(SUBACK)
        assert taken(client) == (True, "car", b"kept")
    assert copy.terminate() == 0


def test_a_session_of_rabbitmq_goes_on_here(tmp_path: Path) -> None:
    """Its definitions have the queue and the bindings of a session; a client resumes it, with what was drained."""
    name = "mqtt-subscription-panelqos1"
    queue = {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "type": "classic",
             "arguments": {"x-expires": 86_400_000}}  # fmt: skip
    binding = {"source": "amq.topic", "vhost": "/", "destination": name, "destination_type": "queue",
               "routing_key": "home.*.set", "arguments": {}}  # fmt: skip
    definitions = {"queues": [queue], "bindings": [binding]}
    process = mqtt_process(tmp_path / "folder").start()
    ask(process.folder, "import_definitions", definitions=definitions)
    with amqp_channel(process) as channel:
        channel.basic_publish("", name, b"drained", pika.BasicProperties(delivery_mode=2))
    with RawMqtt(mqtt_port(process)) as client, amqp_channel(process) as channel:
        assert client.enter("panel", clean=False, properties=HOUR)[0] == 1
        assert taken(client)[2] == b"drained"
        channel.basic_publish("amq.topic", "home.lamp.set", b"on", pika.BasicProperties(delivery_mode=2))
        assert taken(client)[1:] == ("home/lamp/set", b"on")
    assert process.terminate() == 0
