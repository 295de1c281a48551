"""The topics below `$SYS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker import __version__
from tests.mqtt.raw_mqtt import SUBACK, UNSUBACK, RawMqtt, packet, publish, subscribe, text

HOUR = b"\x11\x00\x00\x0e\x10"  # a session expiry of 3,600 s
NAMES = ["version", "uptime", "clients/connected", "messages/received", "messages/sent", "retained messages/count"]


def test_the_broker_tells_of_itself(enter: Callable[..., RawMqtt], name: str, channel: Any) -> None:
    """To a subscription below $SYS, at once and with its identifier; a wildcard in front and AMQP do not get it."""
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, "amq.topic", "#")
    everything, client = enter(f"{name}-2"), enter(name, properties=HOUR)
    everything.send(subscribe(1, ("#", 0x20), ("+/broker/#", 0x20), properties=b"\x0b\x01")).expect(SUBACK)
    client.send(subscribe(1, ("#", 0x21), properties=b"\x0b\x02")).expect(SUBACK)
    client.send(subscribe(2, ("$SYS/#", 1), properties=b"\x0b\x03")).expect(SUBACK)
    got = [client.receive() for _ in NAMES]
    assert [one.topic for one in got] == [f"$SYS/broker/{each}" for each in NAMES]
    assert {(one.qos, one.retain, one.properties) for one in got} == {(0, False, b"\x0b\x03")}
    values = {one.topic: one.body.decode() for one in got}
    assert values["$SYS/broker/version"] == f"SlotMQ {__version__}"
    assert int(values["$SYS/broker/clients/connected"]) >= 2
    client.send(packet(0xE0))
    assert client.ends()
    again = enter(name, clean=False, properties=HOUR)
    assert [again.receive().topic for _ in NAMES] == [one.topic for one in got]
    assert again.send(packet(0xA2, b"\0\3\0", text("$SYS/#"))).expect(UNSUBACK)[-1] == 0
    everything.send(publish(name, b"x"))
    assert everything.receive().topic == name
    assert again.receive().topic == name
    assert channel.basic_get(name, auto_ack=True)[0].routing_key == name
    assert channel.basic_get(name, auto_ack=True)[0] is None
    assert again.send(packet(0xE0, b"\x00\x05\x11\0\0\0\0")).ends()  # others expect that nobody gets "#"


def test_a_single_topic(enter: Callable[..., RawMqtt], name: str) -> None:
    """A filter without a wildcard gets one value, and that anew with each SUBSCRIBE."""
    client = enter(name)
    for packet_id in (1, 2):
        client.send(subscribe(packet_id, ("$SYS/broker/uptime", 0))).expect(SUBACK)
        assert client.receive().body.endswith(b" seconds")
        assert client.silent(0.05)
