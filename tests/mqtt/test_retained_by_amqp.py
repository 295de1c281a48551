"""Retained messages that AMQP publishers set, by the header `x-mqtt-retain`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

from broker.cli.control_client import ask
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.mqtt.conftest import mqtt_port, mqtt_process
from tests.mqtt.raw_mqtt import CONNACK, PUBACK, SUBACK, RawMqtt, connect, publish, subscribe, text
from tests.mqtt.test_retained import amqp_channel, retained_count, taken

RETAIN = pika.BasicProperties(delivery_mode=2, headers={"x-mqtt-retain": True})


def retained(client: RawMqtt, topic_filter: str, *expected: tuple[str, bytes]) -> None:
    """Subscribe, and expect these retained messages and no other."""
    client.send(subscribe(1, (topic_filter, 1))).expect(SUBACK)
    assert {taken(client) for _ in expected} == {(True, topic, body) for topic, body in expected}
    client.round_trip()


def test_a_publish_with_the_header_is_retained(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """The last message of a key reaches later subscriptions, an empty one deletes it; others are only published."""
    live = enter(f"{name}-live")
    live.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
    for key, body in (("a.b", b"older"), ("a.b", b"newer"), ("c", b"gone"), ("c", b"")):
        channel.basic_publish("amq.topic", f"{name}.{key}", body, RETAIN)
    false = pika.BasicProperties(delivery_mode=2, headers={"x-mqtt-retain": False})
    channel.basic_publish("amq.topic", f"{name}.d", b"live", false)
    channel.basic_publish("amq.topic", f"{name}.e", b"live", pika.BasicProperties(delivery_mode=2))
    assert [taken(live)[2] for _ in range(6)] == [b"older", b"newer", b"gone", b"", b"live", b"live"]
    retained(enter(name), f"{name}/#", (f"{name}/a/b", b"newer"))


def test_a_header_that_cannot_be_meant_closes_the_channel(
    enter: Callable[..., RawMqtt], name: str, shared_mqtt: BrokerProcess
) -> None:
    """Text in place of a boolean, and a key that is no topic, are 406; nothing is published."""
    live = enter(name)
    live.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
    text = pika.BasicProperties(headers={"x-mqtt-retain": "yes"})
    for key, properties, reason in (
        (f"{name}.a", text, "neither true nor false"),
        (f"{name}.+", RETAIN, "not a topic in MQTT"),
    ):
        with amqp_channel(shared_mqtt) as channel:
            channel.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker, match=reason) as closed:
                channel.basic_publish("amq.topic", key, b"x", properties)
            assert closed.value.reply_code == 406
    live.round_trip()


def test_a_user_property_of_that_name_retains_nothing(enter: Callable[..., RawMqtt], name: str) -> None:
    """An MQTT client's property is text for consumers; the flag RETAIN alone decides."""
    live, writer = enter(name), enter(f"{name}-w")
    live.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
    said = b"\x26" + text("x-mqtt-retain") + text("yes")
    writer.send(publish(f"{name}/a", b"live", 1, said)).expect(PUBACK)
    assert taken(live)[2] == b"live"
    retained(enter(f"{name}-2"), f"{name}/#")


def test_a_publish_to_another_exchange_is_not_retained(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """The header counts on the MQTT exchange only, also when that one gets the message from another exchange."""
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_bind("amq.topic", name)
    live = enter(name)
    live.send(subscribe(1, (f"{name}/#", 1))).expect(SUBACK)
    channel.basic_publish(name, f"{name}.a", b"live", RETAIN)
    assert taken(live)[1:] == (f"{name}/a", b"live")
    retained(enter(f"{name}-2"), f"{name}/#")
    channel.exchange_delete(name)


def test_transactions_and_numbered_publishes_retain(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """A rolled back publish is not retained, and one whose number was used before neither."""
    connection = channel.connection
    tx = connection.channel()
    tx.tx_select()
    tx.basic_publish("amq.topic", f"{name}.tx", b"dropped", RETAIN)
    tx.tx_rollback()
    retained(enter(f"{name}-1"), f"{name}/#")
    tx.basic_publish("amq.topic", f"{name}.tx", b"kept", RETAIN)
    tx.tx_commit()
    for body in (b"first", b"again"):
        numbered = {"x-mqtt-retain": True, "x-producer": name, "x-seq": 1}
        properties = pika.BasicProperties(delivery_mode=2, headers=numbered)
        channel.basic_publish("amq.topic", f"{name}.seq", body, properties)
    retained(enter(f"{name}-2"), f"{name}/#", (f"{name}/tx", b"kept"), (f"{name}/seq", b"first"))


def test_a_confirmed_publish_is_retained_after_a_kill(tmp_path: Path, name: str) -> None:
    """A confirmed message is retained after kill -9, even in a vhost that was added while the broker ran."""
    process = mqtt_process(tmp_path / "folder").start()
    ask(process.folder, "add_vhost", name="more")
    ask(process.folder, "set_permission", user="guest", vhost="more", configure=".*", write=".*", read=".*")
    here = pika.ConnectionParameters("127.0.0.1", process.address.port, "more")
    with pika.BlockingConnection(here) as connection, connection.channel() as channel:
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", f"{name}.a", b"kept", RETAIN)
    process.kill()
    process.start()
    with RawMqtt(mqtt_port(process)) as client:
        assert client.send(connect(name, user="more:guest")).expect(CONNACK)[1] == 0
        retained(client, "#", (f"{name}/a", b"kept"))
    assert process.terminate() == 0


def test_a_message_over_the_limit_is_refused(tmp_path: Path, name: str) -> None:
    """With confirms it is nacked, without them the channel ends; it is not published, and a smaller number is kept."""
    process = mqtt_process(tmp_path / "folder", SLOTMQ_MQTT__RETAINED_MAX="1").start()
    with amqp_channel(process) as channel, RawMqtt(mqtt_port(process)) as live:
        live.enter(name)
        live.send(subscribe(1, ("#", 1))).expect(SUBACK)
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "a", b"1", RETAIN)
        with pytest.raises(NackError):
            channel.basic_publish("amq.topic", "b", b"1", RETAIN)
        channel.basic_publish("amq.topic", "a", b"2", RETAIN)
        assert retained_count(channel) == 1
        other = channel.connection.channel()
        other.basic_publish("amq.topic", "b", b"1", RETAIN)
        with pytest.raises(ChannelClosedByBroker, match="retained_max allows no more"):
            other.queue_declare("amq.retained", passive=True)
        assert [taken(live)[2] for _ in range(2)] == [b"1", b"2"]
        live.round_trip()
    assert process.terminate() == 0


def test_without_mqtt_the_header_means_nothing(broker: BrokerAddress) -> None:
    """Such a message is only published, whatever the header has."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", "a.+")
    channel.basic_publish("amq.topic", "a.+", b"x", pika.BasicProperties(headers={"x-mqtt-retain": "yes"}))
    assert channel.basic_get(queue, auto_ack=True)[2] == b"x"
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("amq.retained", passive=True)
    connection.close()
