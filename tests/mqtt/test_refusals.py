"""The refusals of the listener: their reason codes, and the announcements of limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker_process import PACKAGE, BrokerProcess
from tests.mqtt.raw_mqtt import CONNACK, DISCONNECT, PUBACK, SUBACK, RawMqtt, connect, packet, publish, subscribe, text

NAMED = connect("client")
OFFERS = {b"\x21\x10\x00": "receive maximum 4096", b"\x22\x00\x10": "16 topic aliases"}


def test_connack_announces_the_limits(port: int, name: str) -> None:
    """CONNACK of MQTT 5 has the limits; everything else is supported."""
    with RawMqtt(port) as client:
        body = client.enter(name)
    assert [offer for offer in OFFERS if offer not in body] == []
    assert b"\x24" not in body[3:]


BEFORE_LOGIN: dict[str, tuple[bytes, int | None]] = {
    "version 6": (connect("a", 6), 0x84),
    "version 3": (connect("a", 3), 0x01),
    "another protocol": (packet(0x10, text("MQIsdp"), b"\x03\x02\0\x3c", text("a")), 0x01),
    "no user name": (packet(0x10, text("MQTT"), b"\x05\x02\0\x3c\0", text("a")), 0x86),
    "wrong password": (connect("a", password="wrong"), 0x86),
    "wrong password in 3.1.1": (connect("a", 4, password="wrong"), 0x04),
    "no such vhost": (connect("a", user="missing:guest"), 0x87),
    "no such vhost in 3.1.1": (connect("a", 4, user="missing:guest"), 0x05),
    "enhanced authentication": (connect("a", properties=b"\x15" + text("SCRAM")), 0x8C),
    "authentication data without a method": (connect("a", properties=b"\x16\0\1x"), 0x82),
    "a will with a wildcard": (connect("a", will=b"\0" + text("w/#") + text("x"), will_flags=0x04), 0x90),
    "an empty client id that lasts": (connect("", 4, clean=False), 0x02),
    "a long client id": (connect("x" * 300), 0x85),
    "a client id with NUL": (connect("a\0b"), 0x81),
    "a client id that is not UTF-8": (packet(0x10, text("MQTT"), b"\x05\x02\0\x3c\0", text(b"\xff")), 0x81),
    "the reserved flag": (packet(0x10, text("MQTT"), b"\x05\x03\0\x3c\0", text("a")), 0x81),
    "a property twice": (connect("a", properties=b"\x21\0\x05\x21\0\x05"), 0x82),
    "receive maximum 0": (connect("a", properties=b"\x21\0\0"), 0x82),
    "an unknown property": (connect("a", properties=b"\x7f\0"), 0x81),
    "a packet over 4 KiB": (connect("a", properties=b"\x26" + text("x" * 5000) + text("")), None),
    "octets after the end": (packet(0x10, NAMED[2:], b"x"), 0x81),
    "a publish first": (publish("a", b"x"), None),
    "AMQP": (b"AMQP\0\0\x09\x01", None),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", None),
    "a length of five octets": (b"\x10\xff\xff\xff\xff\x01", None),
}


@pytest.mark.parametrize("case", BEFORE_LOGIN)
def test_a_client_is_refused_before_its_login(port: int, case: str) -> None:
    """A CONNECT that cannot be is answered with a CONNACK and its code; what is no CONNECT with a close."""
    octets, code = BEFORE_LOGIN[case]
    with RawMqtt(port) as client:
        client.send(octets)
        if code is not None:
            body = client.expect(CONNACK)
            assert (body[0], body[1]) == (0, code)
        else:
            first_or_end(client)
        assert client.ends()


def first_or_end(client: RawMqtt) -> None:
    """Read a CONNACK with an error, if there is one."""
    try:
        body = client.expect(CONNACK)
    except (EOFError, ConnectionResetError):
        return
    assert body[1] != 0


AFTER_LOGIN: dict[str, tuple[bytes, int]] = {
    "a second CONNECT": (NAMED, 0x82),
    "a retained topic with $": (publish("$SYS/x", b"x", flags=1), 0x90),
    "QoS 3": (packet(0x36, text("a"), b"\0\1\0"), 0x81),
    "topic alias 0": (publish("a", b"x", properties=b"\x23\0\0"), 0x94),
    "topic alias 17": (publish("a", b"x", properties=b"\x23\0\x11"), 0x94),
    "a topic alias without a topic": (publish("", b"x", properties=b"\x23\0\1"), 0x82),
    "a topic alias twice": (publish("a", b"x", properties=b"\x23\0\1\x23\0\1"), 0x82),
    "an empty topic": (publish("", b"x"), 0x90),
    "a topic with +": (publish("a/+", b"x"), 0x90),
    "a topic with #": (publish("a/#", b"x"), 0x90),
    "a topic with $": (publish("$SYS/x", b"x"), 0x90),
    "a topic with NUL": (publish("a\0", b"x"), 0x81),
    "a topic that is not UTF-8": (publish(b"\xc3\x28", b"x"), 0x81),
    "a topic of 300 bytes": (publish("x" * 300, b"x"), 0x90),
    "a topic of 65 levels": (publish("/" * 64, b"x"), 0x90),
    "packet id 0": (packet(0x32, text("a"), b"\0\0\0"), 0x81),
    "a subscription identifier of 0": (subscribe(1, ("a", 0), properties=b"\x0b\x00"), 0x82),
    "a subscribe without a filter": (packet(0x82, b"\0\1\0"), 0x82),
    "a subscribe at QoS 3": (subscribe(1, ("a", 3)), 0x81),
    "no local in a shared subscription": (subscribe(1, ("$share/g/a", 4)), 0x82),
    "retain handling 3": (subscribe(1, ("a", 0x30)), 0x82),
    "wrong flags": (packet(0x80, b"\0\1\0", text("a"), b"\0"), 0x81),
    "a filter with NUL": (subscribe(1, ("a\0", 0)), 0x81),
    "PUBREL with the flags of PUBREC": (packet(0x60, b"\0\1"), 0x81),
    "PUBREL of packet id 0": (packet(0x62, b"\0\0"), 0x81),
    "AUTH": (packet(0xF0), 0x82),
    "CONNACK": (packet(0x20, b"\0\0"), 0x82),
    "type 0": (packet(0x00), 0x82),
    "a long user property": (publish("a", b"x", 1, b"\x26" + text("x" * 256) + text("")), 0x83),
    "a packet over the limit": (b"\x30\xff\xff\xff\x7f", 0x95),
    "a lasting end of a session that does not last": (packet(0xE0, b"\0\x05\x11\0\0\0\x05"), 0x82),
}


@pytest.mark.parametrize("case", AFTER_LOGIN)
def test_a_client_is_disconnected(
    enter: Callable[..., RawMqtt], name: str, shared_mqtt: BrokerProcess, case: str
) -> None:
    """A packet that cannot be is answered with a DISCONNECT and its reason code; the publish before it counts."""
    octets, code = AFTER_LOGIN[case]
    reader = enter(f"{name}-r")
    reader.send(subscribe(1, ("a/before", 0))).expect(SUBACK)
    client = enter(name)
    before = len(events(shared_mqtt))
    client.send(publish("a/before", case.encode()), octets)
    assert client.expect(DISCONNECT)[0] == code
    assert client.ends()
    assert reader.read()[1].endswith(case.encode())
    assert len(events(shared_mqtt)) == before + 1, "one log event"


@pytest.mark.parametrize(
    "case", ["a retained topic with $", "PUBREL of packet id 0", "an empty topic", "a second CONNECT"]
)
def test_3_1_1_is_disconnected_without_a_word(enter: Callable[..., RawMqtt], name: str, case: str) -> None:
    """MQTT 3.1.1 has no DISCONNECT of a broker: it only closes."""
    client = enter(name, 4)
    assert client.send(AFTER_LOGIN[case][0]).ends()


def events(process: BrokerProcess) -> list[Any]:
    """Return the log events of failed connections."""
    return [line for line in process.stderr().splitlines() if "connection.failed" in line]


FILTERS = {
    "$share/g": 0x8F,
    "$share//a": 0x8F,
    "$share/g+/a": 0x8F,
    "$share/g/": 0x8F,
    "$share/g/a/#/b": 0x8F,
    "$share/g/" + "x" * 250: 0x8F,
    "$SYS": 0x8F,
    "$other/#": 0x8F,
    "$share/g/$SYS/#": 0x8F,
    "$SYS/#": 0x02,
    "a/#/b": 0x8F,
    "a+": 0x8F,
    "a/b#": 0x8F,
    "a/*/b": 0x8F,
    "x" * 256: 0x8F,
    "/" * 64: 0x8F,
    "a/+/#": 0x02,
    "/": 0x02,
}


@pytest.mark.parametrize("version", [4, 5])
def test_each_filter_has_its_code(enter: Callable[..., RawMqtt], name: str, version: int) -> None:
    """SUBACK has a code for each filter in its order; a refused one does not keep the others from their effect."""
    client = enter(name, version)
    extra = None if version == 4 else b""
    body = client.send(subscribe(1, *[(one, 2) for one in FILTERS], properties=extra)).expect(SUBACK)
    wanted = [code if version == 5 or code < 0x80 else 0x80 for code in FILTERS.values()]
    assert list(body[-len(FILTERS) :]) == wanted


def test_ten_thousand_filters_in_one_packet(enter: Callable[..., RawMqtt], name: str) -> None:
    """A SUBSCRIBE of any length has one code for each filter; the broker answers others meanwhile."""
    client, other = enter(name), enter(f"{name}-2")
    client.send(subscribe(1, *[(f"{name}/{number}/+", 1) for number in range(10_000)]))
    for _ in range(5):
        other.round_trip()
    assert client.expect(SUBACK)[3:] == bytes([1]) * 10_000
    other.send(publish(f"{name}/9999/x", b"x", 1)).expect(PUBACK)
    assert client.read()[1].endswith(b"x")


def test_rights_are_those_of_amqp(
    port: int, enter: Callable[..., RawMqtt], name: str, shared_mqtt: BrokerProcess
) -> None:
    """Without the right to a topic a publish ends the connection and a filter is refused, both with 0x87."""
    user = f"u{name[-12:]}"
    command(shared_mqtt, "user", "add", user, "--password-stdin", stdin="s3cret")
    with RawMqtt(port) as client:
        assert client.send(connect(name, user=f"/:{user}", password="s3cret")).expect(CONNACK)[1] == 0x87
    command(shared_mqtt, "permission", "set", user, "^mqtt-", ".*", ".*")
    reader = enter(f"{name}-r")
    reader.send(subscribe(1, (f"{name}/#", 0))).expect(SUBACK)
    with RawMqtt(port) as client:
        assert client.send(connect(name, user=f"/:{user}", password="s3cret")).expect(CONNACK)[1] == 0
        client.send(subscribe(1, (f"{name}/a", 1)), publish(f"{name}/b", b"x"))
        assert client.expect(SUBACK)[-1] == 1
        assert reader.read()[1].endswith(b"x")
    command(shared_mqtt, "permission", "set", user, "^mqtt-", "^mqtt-", "^mqtt-")
    for version, refused in ((4, 0x80), (5, 0x87)):
        with RawMqtt(port) as client:
            assert client.send(connect(name, version, user=user, password="s3cret")).expect(CONNACK)[1] == 0
            extra = None if version == 4 else b""
            assert client.send(subscribe(1, (f"{name}/a", 1), properties=extra)).expect(SUBACK)[-1] == refused
            client.send(publish(f"{name}/b", b"y", 1, extra))
            if version == 5:
                assert client.expect(DISCONNECT)[0] == 0x87
            assert client.ends()


def command(process: BrokerProcess, *words: str, stdin: str = "") -> None:
    """Run a command on the broker."""
    line = [sys.executable, "-m", "broker", *words, "--data-dir", str(process.folder)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    subprocess.run(line, check=True, input=stdin, text=True, env=environment)
