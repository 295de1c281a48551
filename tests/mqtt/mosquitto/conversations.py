"""Conversations of raw MQTT clients, in which the answers of Mosquitto and SlotMQ are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.mqtt.raw_mqtt import connect, packet, text, varint

__all__ = ["CONVERSATIONS", "Answer", "Step"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply packet; `number` selects one of the packet ids used by the broker in the conversation, from 1."""

    first: int
    number: int
    rest: bytes = b""

    def octets(self, packet_id: int) -> bytes:
        """Return the packet."""
        return packet(self.first, packet_id.to_bytes(2, "big"), self.rest)


Step: TypeAlias = "tuple[str, bytes | Answer | float | None]"
"""A connection and a packet that it sends; None closes the socket, a float is a pause in seconds. The connection is a
letter for the client, with a digit for its later connections."""
Script: TypeAlias = Callable[[str, int], Iterator[Step]]

CONVERSATIONS: Final[dict[str, list[Step]]] = {}
PING: Final = packet(0xC0)
GOODBYE: Final = packet(0xE0)
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
HOUR: Final = b"\x11\0\0\x0e\x10"
ONE_S: Final = b"\x02\0\0\0\1"


def in_versions(*versions: int) -> Callable[[Script], Script]:
    """Add a conversation for each MQTT version; its function receives the prefix of its names and the version."""

    def added(script: Script) -> Script:
        for version in versions:
            name = f"{script.__name__}-{version}"
            CONVERSATIONS[name] = list(script(name, version))
        return script

    return added


def lasting(name: str, version: int) -> bytes:
    """Return a CONNECT with a session that lasts an hour (version 5) or does not expire."""
    return connect(name, version, clean=False, properties=HOUR if version == 5 else b"")


def extra(version: int, properties: bytes) -> bytes:
    """Return the encoded properties with their length; nothing before version 5."""
    return varint(len(properties)) + properties if version == 5 else b""


def pub(
    version: int,
    topic: str | bytes,
    body: bytes,
    qos: int = 0,
    number: int = 0,
    properties: bytes = b"",
    flags: int = 0,
) -> bytes:
    """Return a PUBLISH."""
    packet_id = number.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | flags, text(topic), packet_id, extra(version, properties), body)


def sub(version: int, number: int, *filters: tuple[str, int], properties: bytes = b"") -> bytes:
    """Return a SUBSCRIBE."""
    listed = [text(name) + bytes([options]) for name, options in filters]
    return packet(0x82, number.to_bytes(2, "big"), extra(version, properties), *listed)


def unsub(version: int, number: int, *filters: str) -> bytes:
    """Return an UNSUBSCRIBE."""
    return packet(0xA2, number.to_bytes(2, "big"), extra(version, b""), *map(text, filters))


def reply(kind: int, number: int) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP with the client's packet id."""
    return packet(kind, number.to_bytes(2, "big"))


def will(version: int, topic: str, body: bytes, properties: bytes = b"") -> bytes:
    """Return a will in the encoding of CONNECT."""
    return extra(version, properties) + text(topic) + text(body)


# -- connecting --------------------------------------------------------------------------------------------------------


@in_versions(4, 5)
def connect_ping_disconnect(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", PING
    yield "A", PING + PING
    yield "A", GOODBYE


@in_versions(4, 5)
def connect_without_an_id(_me: str, v: int) -> Iterator[Step]:
    yield "A", connect("", v)
    yield "B", connect("", v, clean=False)


@in_versions(4, 5)
def connect_with_a_wrong_password(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v, password="wrong")


@in_versions(4, 5)
def connect_without_a_login(me: str, v: int) -> Iterator[Step]:
    yield "A", packet(0x10, text("MQTT"), bytes([v, 2]), b"\0\x3c", extra(v, b""), text(me))


@in_versions(2, 6, 255)
def connect_with_an_unknown_version(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)


@in_versions(4, 5)
def connect_with_another_protocol(me: str, v: int) -> Iterator[Step]:
    yield "A", packet(0x10, text("MQTX"), bytes([v, 2]), b"\0\x3c", extra(v, b""), text(me))


@in_versions(4, 5)
def connect_with_wrong_flags(me: str, v: int) -> Iterator[Step]:
    for letter, flags in (("A", 0x03), ("B", 0x1E), ("C", 0x0A), ("D", 0x22)):
        rest = will(v, me, b"x") if flags & 4 else b""
        yield letter, packet(0x10, text("MQTT"), bytes([v, flags]), b"\0\x3c", extra(v, b""), text(me), rest)


@in_versions(4, 5)
def connect_with_header_flags(me: str, v: int) -> Iterator[Step]:
    yield "A", b"\x11" + connect(me, v)[1:]


@in_versions(4, 5)
def connect_cut_short(me: str, v: int) -> Iterator[Step]:
    whole = connect(me, v)
    yield "A", packet(0x10, whole[2:-3])


@in_versions(4, 5)
def connect_twice(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", connect(me, v)


@in_versions(4, 5)
def packets_before_connect(me: str, v: int) -> Iterator[Step]:
    yield from zip("ABCD", (PING, pub(v, me, b"x"), sub(v, 1, (me, 0)), GOODBYE), strict=True)


@in_versions(5)
def connect_properties_that_cannot_be(me: str, _v: int) -> Iterator[Step]:
    wrong = (b"\x21\0\0", b"\x21\0\5\x21\0\5", b"\x27\0\0\0\0", b"\x19\2", b"\x01\1", b"\x7f\0", b"\x16\0\1a")
    for letter, properties in zip("ABCDEFG", wrong, strict=True):
        yield letter, connect(me + letter, properties=properties)


@in_versions(5)
def connect_with_enhanced_authentication(me: str, _v: int) -> Iterator[Step]:
    yield "A", connect(me, properties=b"\x15" + text("SCRAM-SHA-1"))


@in_versions(4, 5)
def a_client_id_is_taken_over(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A2", connect(me, v)
    yield "A2", PING


@in_versions(4, 5)
def keep_alive_ends(me: str, v: int) -> Iterator[Step]:
    yield "R", connect(f"{me}-r", v)
    yield "R", sub(v, 1, (me, 0))
    yield "A", connect(me, v, keep_alive_s=1, will=will(v, me, b"late"), will_flags=4)
    yield "A", 2.2


# -- subscribing -------------------------------------------------------------------------------------------------------


@in_versions(4, 5)
def subscribe_lists(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield (
        "A",
        sub(v, 7, (f"{me}/a", 0), (f"{me}/+/b", 1), (f"{me}/#", 2), (f"{me}/a", 1), (f"{me}//", 0), (f"+/{me}", 0)),
    )
    yield "A", sub(v, 7, (f"{me}/a", 2))
    yield "A", pub(v, f"{me}/a", b"one", 1, 9)


@in_versions(4, 5)
def subscribe_filters_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    for letter, wrong in zip("ABCDEF", ("a/#/b", "a#", "a+/b", "#/", "", "a/b+"), strict=True):
        yield letter, connect(me + letter, v)
        yield letter, sub(v, 1, (f"{me}/good", 1), (wrong, 0))


@in_versions(4, 5)
def subscribes_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    for letter, wrong in {
        "A": packet(0x82, b"\0\1", extra(v, b"")),
        "B": sub(v, 0, (me, 0)),
        "C": sub(v, 1, (me, 3)),
        "D": b"\x80" + sub(v, 1, (me, 0))[1:],
        "E": packet(0x82, b"\0\1", extra(v, b""), text(me)),
        "F": sub(v, 1, (me, 0xC0)),
        "G": sub(v, 1, (f"{me}\0", 0)),
        "H": packet(0x82, b"\0\1", extra(v, b""), text(b"\xff\xfe"), b"\0"),
    }.items():
        yield letter, connect(me + letter, v)
        yield letter, wrong


@in_versions(4, 5)
def unsubscribes_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    wrong = (packet(0xA2, b"\0\1", extra(v, b"")), unsub(v, 0, me), b"\xa0" + unsub(v, 1, me)[1:], unsub(v, 1, ""))
    for letter, octets in zip("ABCD", wrong, strict=True):
        yield letter, connect(me + letter, v)
        yield letter, octets


@in_versions(4, 5)
def unsubscribe(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", sub(v, 1, (f"{me}/a", 0), (f"{me}/b", 1))
    yield "A", unsub(v, 2, f"{me}/a", f"{me}/never", f"{me}/a")
    yield "A", pub(v, f"{me}/a", b"no")
    yield "A", pub(v, f"{me}/b", b"yes")


@in_versions(4, 5)
def overlapping_filters(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", sub(v, 1, (f"{me}/#", 1), (f"{me}/+", 1), (f"{me}/a", 1))
    yield "A", pub(v, f"{me}/a", b"once")
    yield "A", pub(v, f"{me}/a", b"again", 1, 3)
    yield "A", Answer(PUBACK, 1)


@in_versions(4, 5)
def overlapping_filters_at_several_qos(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w", v)
    yield "A", connect(me, v)
    yield "A", sub(v, 1, (f"{me}/#", 0), (f"{me}/+", 1))
    yield "W", pub(v, f"{me}/a", b"once", 1, 1)


@in_versions(4, 5)
def topics_and_filters(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    names = (me, f"{me}/", f"/{me}", f"{me}//a", f"{me}/a/b", f"{me}/A", f"{me}/a.b", f"{me}/ü ☃")
    filters = (f"{me}/#", f"{me}/+", f"{me}/+/a", f"+/{me}", f"{me}/a/+", f"{me}/a.b", "#", "+/a")
    for number, one in enumerate(filters, 1):
        yield "A", sub(v, number, (one, 0x20 if v == 5 else 0))
        yield "A", pub(v, names[0], b"0") + b"".join(pub(v, topic, b"x") for topic in names[1:])
        yield "A", unsub(v, number, one)


@in_versions(4, 5)
def topics_with_a_dollar(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", sub(v, 1, ("#", 0x20 if v == 5 else 0), ("$SYS/broker/never", 0))
    yield "A", PING


@in_versions(5)
def subscription_identifiers(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "A", sub(v, 1, (f"{me}/#", 0), properties=b"\x0b\x07")
    yield "A", pub(v, f"{me}/a", b"seven")
    yield "A", sub(v, 2, (f"{me}/#", 0), properties=b"\x0b\xff\xff\xff\x7f")
    yield "A", pub(v, f"{me}/a", b"greatest")
    yield "A", sub(v, 3, (f"{me}/#", 0))
    yield "A", pub(v, f"{me}/a", b"none")


@in_versions(5)
def subscription_identifiers_of_retained(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "A", pub(v, f"{me}/a", b"kept", flags=1)
    yield "A", sub(v, 2, (f"{me}/a", 1), properties=b"\x0b\x09")


@in_versions(5)
def subscription_identifiers_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    for letter, properties in {"A": b"\x0b\0", "B": b"\x0b\1\x0b\2", "C": b"\x21\0\5", "D": b"\x0b"}.items():
        yield letter, connect(me + letter)
        yield letter, sub(v, 1, (me, 0), properties=properties)


@in_versions(5)
def no_local(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "B", connect(f"{me}-b")
    yield "A", sub(v, 1, (f"{me}/a", 0x05), (f"{me}/b", 1))
    yield "A", pub(v, f"{me}/a", b"own", 1, 1) + pub(v, f"{me}/b", b"local", 1, 2)
    yield "B", pub(v, f"{me}/a", b"other", 1, 1)


@in_versions(5)
def retain_as_published(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "B", connect(f"{me}-b")
    yield "A", sub(v, 1, (f"{me}/a", 0x09))
    yield "B", sub(v, 1, (f"{me}/a", 0x01))
    yield "A", pub(v, f"{me}/a", b"kept", 1, 1, flags=1)
    yield "A", pub(v, f"{me}/a", b"live", 1, 2)
    yield "A", pub(v, f"{me}/a", b"", 1, 3, flags=1)


@in_versions(5)
def shared_subscription(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "W", connect(f"{me}-w")
    yield "W", pub(v, f"{me}/a", b"kept", 1, 1, flags=1)
    yield "A", sub(v, 1, (f"$share/g/{me}/#", 1))
    yield "W", pub(v, f"{me}/a", b"one", 1, 2)
    yield "A", Answer(PUBACK, 1)
    yield "A", unsub(v, 2, f"{me}/#")
    yield "W", pub(v, f"{me}/a", b"two", 1, 3)
    yield "A", unsub(v, 3, f"$share/g/{me}/#")
    yield "W", pub(v, f"{me}/a", b"three", 1, 4)


@in_versions(5)
def shared_subscriptions_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    wrong = ("$share/g", "$share//a", "$share/g+/a", "$share/g/")
    for letter, one in zip("ABCD", wrong, strict=True):
        yield letter, connect(me + letter)
        yield letter, sub(v, 1, (one, 0))


# -- publishing --------------------------------------------------------------------------------------------------------


@in_versions(4, 5)
def every_qos_to_every_qos(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w", v)
    for qos, letter in enumerate("ABC"):
        yield letter, connect(me + letter, v)
        yield letter, sub(v, 1, (f"{me}/#", qos))
    yield "W", pub(v, f"{me}/0", b"zero")
    yield "W", pub(v, f"{me}/1", b"one", 1, 1)
    yield "W", pub(v, f"{me}/2", b"two", 2, 2) + reply(PUBREL, 2)


@in_versions(4, 5)
def a_publish_without_a_subscriber(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", pub(v, me, b"x", 1, 65535)
    yield "A", pub(v, me, b"x", 2, 65534)
    yield "A", reply(PUBREL, 65534)


@in_versions(4, 5)
def qos_2_in(me: str, v: int) -> Iterator[Step]:
    yield "R", lasting(f"{me}-r", v)
    yield "R", sub(v, 1, (me, 1))
    yield "R", GOODBYE  # brokers differ in delivering at the PUBLISH or at the PUBREL
    yield "A", connect(me, v)
    yield "A", pub(v, me, b"two", 2, 5)
    yield "A", pub(v, me, b"two", 2, 5, flags=8)
    yield "A", reply(PUBREL, 5)
    yield "A", pub(v, me, b"next", 2, 5)
    yield "A", reply(PUBREL, 5)
    yield "R2", lasting(f"{me}-r", v)


@in_versions(4, 5)
def qos_2_in_over_two_connections(me: str, v: int) -> Iterator[Step]:
    yield "R", lasting(f"{me}-r", v)
    yield "R", sub(v, 1, (me, 1))
    yield "R", GOODBYE
    yield "A", lasting(me, v)
    yield "A", sub(v, 1, (f"{me}/none", 0))
    yield "A", pub(v, me, b"two", 2, 5)
    yield "A", None
    yield "A2", lasting(me, v)
    yield "A2", pub(v, me, b"two", 2, 5, flags=8)
    yield "A2", reply(PUBREL, 5)
    yield "R2", lasting(f"{me}-r", v)


@in_versions(4, 5)
def qos_2_out(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", sub(v, 1, (me, 2))
    yield "A", pub(v, me, b"two", 2, 5) + reply(PUBREL, 5)
    yield "A", Answer(PUBREC, 1)
    yield "A", Answer(PUBCOMP, 1)
    yield "A", PING


@in_versions(4, 5)
def qos_2_out_over_connections(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w", v)
    yield "A", lasting(me, v)
    yield "A", sub(v, 1, (me, 2))
    yield "W", pub(v, me, b"one", 2, 1) + reply(PUBREL, 1)
    yield "A", None
    yield "A2", lasting(me, v)
    yield "A2", Answer(PUBREC, 1)
    yield "A2", None
    yield "A3", lasting(me, v)
    yield "A3", Answer(PUBCOMP, 1)
    yield "A3", None
    yield "A4", lasting(me, v)


@in_versions(4, 5)
def acks_of_unknown_packet_ids(me: str, v: int) -> Iterator[Step]:
    for letter, kind in zip("ABCD", (PUBACK, PUBREC, PUBREL, PUBCOMP), strict=True):
        yield letter, connect(me + letter, v)
        yield letter, reply(kind, 77)
        yield letter, PING


@in_versions(5)
def an_ack_with_a_reason_code(me: str, v: int) -> Iterator[Step]:
    yield "A", lasting(me, v)
    yield "A", sub(v, 1, (me, 2))
    yield "A", pub(v, me, b"one", 1, 1) + pub(v, me, b"two", 2, 2) + reply(PUBREL, 2)
    yield "A", Answer(PUBACK, 1, b"\x97")
    yield "A", Answer(PUBREC, 2, b"\x97\0")
    yield "A", None
    yield "A2", lasting(me, v)


@in_versions(4, 5)
def redelivery(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w", v)
    yield "A", lasting(me, v)
    yield "A", sub(v, 1, (me, 1))
    for number in (1, 2, 3):
        yield "W", pub(v, me, b"%d" % number, 1, number)
    yield "A", Answer(PUBACK, 2)
    yield "A", GOODBYE
    yield "W", pub(v, me, b"4", 1, 4)
    yield "A2", lasting(me, v)
    yield "A2", Answer(PUBACK, 1)
    yield "A2", Answer(PUBACK, 3)
    yield "A2", Answer(PUBACK, 4)
    yield "A2", GOODBYE
    yield "A3", lasting(me, v)


@in_versions(4, 5)
def a_session_and_its_end(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w", v)
    yield "A", lasting(me, v)
    yield "A", sub(v, 1, (me, 1))
    yield "A", GOODBYE
    yield "A2", lasting(me, v)
    yield "A2", GOODBYE
    yield "A3", connect(me, v)
    yield "W", pub(v, me, b"nobody", 1, 1)
    yield "A3", GOODBYE
    yield "A4", lasting(me, v)


@in_versions(5)
def an_expiry_of_zero(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, clean=False)
    yield "A", sub(v, 1, (me, 1))
    yield "A", GOODBYE
    yield "A2", lasting(me, v)
    yield "A2", sub(v, 1, (me, 1))
    yield "A2", packet(0xE0, b"\0\5\x11\0\0\0\0")
    yield "A3", lasting(me, v)


@in_versions(5)
def an_expiry_that_comes_with_the_disconnect(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "A", packet(0xE0, b"\0\5\x11\0\0\0\5")
    yield "B", lasting(f"{me}-b", v)
    yield "B", sub(v, 1, (me, 1))
    yield "B", packet(0xE0, b"\0\5\x11\0\0\0\1")
    yield "B2", 2.3
    yield "B2", lasting(f"{me}-b", v)


@in_versions(4, 5)
def publishes_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    for letter, wrong in {
        "A": pub(v, "a/+", b"x"),
        "B": pub(v, "#", b"x"),
        "C": pub(v, "", b"x"),
        "D": pub(v, me, b"x", 1, 0),
        "E": pub(v, me, b"x", 3, 1),
        "F": pub(v, b"\xc3\x28", b"x"),
        "G": pub(v, f"{me}\0", b"x"),
        "H": packet(0x30, b"\0\x10short"),
        "I": pub(v, b"\xed\xa0\x80", b"x"),
    }.items():
        yield letter, connect(me + letter, v)
        yield letter, wrong


@in_versions(5)
def publish_properties_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    wrong = (b"\x02\0\0\0\1\x02\0\0\0\1", b"\x26\0\1a", b"\x7e\1", b"\x11\0\0\0\1")
    for letter, properties in zip("ABCD", wrong, strict=True):
        yield letter, connect(me + letter)
        yield letter, pub(v, me, b"x", properties=properties)


@in_versions(4, 5)
def packets_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    for letter, wrong in {
        "A": packet(0x00),
        "B": packet(0x20, b"\0\0"),
        "E": packet(0xC0, b"x"),
        "F": packet(0xF0),
        "G": packet(0x60, b"\0\1"),
        "H": packet(0x40, b"\0"),
        "I": b"\x30\xff\xff\xff\xff\x01",
        "J": packet(0xC1),
        "K": packet(0xE1),
        "L": packet(0x40, b"\0\0"),
    }.items():
        yield letter, connect(me + letter, v)
        yield letter, wrong


@in_versions(5)
def properties_pass_through(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "A", sub(v, 1, (me, 1))
    pairs = b"".join(b"\x26" + text(key) + text("v") for key in ("b", "a", "b"))
    some = b"\x01\1\x03" + text("text/plain") + b"\x08" + text("answers/here") + b"\x09" + text(b"\0\xff")
    yield "A", pub(v, me, b"body", 1, 1, some + pairs)
    yield "A", pub(v, me, b"", 0, 0, b"\x01\0" + pairs)


@in_versions(5)
def topic_aliases(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "A", sub(v, 1, (f"{me}/#", 1))
    yield "A", pub(v, f"{me}/a", b"set", properties=b"\x23\0\1")
    yield "A", pub(v, "", b"used", properties=b"\x23\0\1")
    yield "A", pub(v, f"{me}/b", b"other", properties=b"\x23\0\1")
    yield "A", pub(v, "", b"moved", 1, 4, properties=b"\x23\0\1")


@in_versions(5)
def topic_aliases_that_cannot_be(me: str, v: int) -> Iterator[Step]:
    for letter, wrong in {
        "A": pub(v, me, b"x", properties=b"\x23\0\0"),
        "B": pub(v, me, b"x", properties=b"\x23\xff\xff"),
        "C": pub(v, "", b"x", properties=b"\x23\0\2"),
        "D": pub(v, me, b"x", properties=b"\x23\0\1\x23\0\1"),
    }.items():
        yield letter, connect(me + letter)
        yield letter, wrong


@in_versions(5)
def a_receive_maximum(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w")
    yield "A", connect(me, properties=b"\x21\0\2")
    yield "A", sub(v, 1, (me, 2))
    for number in (1, 2, 3):
        yield "W", pub(v, me, b"%d" % number, 1, number)
    yield "A", Answer(PUBACK, 1)


@in_versions(5)
def a_maximum_packet_size(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w")
    yield "A", connect(me, properties=b"\x27\0\0\0\x50")
    yield "A", sub(v, 1, (me, 1))
    yield "W", pub(v, me, b"x" * 200, 1, 1)
    yield "W", pub(v, me, b"small", 1, 2)


# -- retained ----------------------------------------------------------------------------------------------------------


@in_versions(4, 5)
def retained(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me, v)
    yield "A", sub(v, 1, (f"{me}/a", 1))
    yield "A", pub(v, f"{me}/a", b"first", 1, 1, flags=1)
    yield "A", pub(v, f"{me}/a", b"second", 0, flags=1) + pub(v, f"{me}/b/c", b"third", 1, 2, flags=1)
    yield "A", pub(v, f"{me}/a", b"live", 0)
    yield "B", connect(f"{me}-b", v)
    yield "B", sub(v, 1, (f"{me}/#", 1), (f"{me}/+/c", 0))
    yield "B", sub(v, 2, (f"{me}/a", 0))
    yield "A", pub(v, f"{me}/a", b"", 1, 3, flags=1)
    yield "C", connect(f"{me}-c", v)
    yield "C", sub(v, 1, (f"{me}/+", 1), (f"{me}/+/+", 1))
    yield "C", sub(v, 2, (f"{me}/b/c", 0))


@in_versions(5)
def retain_handling(me: str, v: int) -> Iterator[Step]:
    yield "A", connect(me)
    yield "A", pub(v, me, b"kept", 1, 1, flags=1)
    for number, handling in enumerate((0x21, 0x11, 0x01, 0x01, 0x11, 0x21), 1):
        yield "A", sub(v, number, (me, handling))
    yield "A", unsub(v, 9, me)
    yield "A", sub(v, 10, (me, 0x11))
    yield "A", sub(v, 11, (me, 0x30))


@in_versions(5)
def retain_handling_of_a_session(me: str, v: int) -> Iterator[Step]:
    yield "A", lasting(me, v)
    yield "A", sub(v, 1, (me, 0x10))
    yield "A", pub(v, me, b"kept", flags=1)
    yield "A", GOODBYE
    yield "A2", lasting(me, v)
    yield "A2", sub(v, 1, (me, 0x10))
    yield "A2", sub(v, 1, (me, 0x00))


@in_versions(5)
def expiry(me: str, v: int) -> Iterator[Step]:
    yield "W", connect(f"{me}-w")
    yield "A", lasting(me, v)
    yield "A", sub(v, 1, (f"{me}/#", 1))
    yield "A", GOODBYE
    yield "W", pub(v, f"{me}/short", b"no", 1, 1, ONE_S, flags=1)
    yield "W", pub(v, f"{me}/long", b"yes", 1, 2, b"\x02\0\1\0\0", flags=1)
    yield "W", 2.2
    yield "A2", lasting(me, v)
    yield "B", connect(f"{me}-b")
    yield "B", sub(v, 1, (f"{me}/#", 0))


# -- wills -------------------------------------------------------------------------------------------------------------


@in_versions(4, 5)
def wills(me: str, v: int) -> Iterator[Step]:
    yield "R", connect(f"{me}-r", v)
    yield "R", sub(v, 1, (f"{me}/#", 2))
    for qos, letter in enumerate("ABC"):
        yield letter, connect(me + letter, v, will=will(v, f"{me}/{qos}", b"bye"), will_flags=4 | qos << 3)
        yield letter, None
    yield "D", connect(f"{me}D", v, will=will(v, f"{me}/d", b"no"), will_flags=4)
    yield "D", GOODBYE
    yield "E", connect(f"{me}E", v, will=will(v, f"{me}/e", b"kept"), will_flags=0x24)
    yield "E", packet(0x00)
    yield "S", connect(f"{me}-s", v)
    yield "S", sub(v, 1, (f"{me}/e", 0))


@in_versions(4, 5)
def a_will_at_take_over(me: str, v: int) -> Iterator[Step]:
    yield "R", connect(f"{me}-r", v)
    yield "R", sub(v, 1, (f"{me}/#", 1))
    yield "A", connect(me, v, will=will(v, f"{me}/w", b"first"), will_flags=4)
    yield "A2", connect(me, v)


@in_versions(5)
def a_will_with_properties(me: str, v: int) -> Iterator[Step]:
    yield "R", connect(f"{me}-r", v)
    yield "R", sub(v, 1, (me, 0))
    some = b"\x01\1\x03" + text("text/plain") + b"\x08" + text("here") + b"\x09" + text(b"id") + b"\x26\0\1a\0\1b"
    yield "A", connect(me, will=will(v, me, b"bye", some), will_flags=4)
    yield "A", packet(0xE0, b"\x04")


@in_versions(5)
def delayed_wills(me: str, v: int) -> Iterator[Step]:
    yield "R", connect(f"{me}-r", v)
    yield "R", sub(v, 1, (f"{me}/#", 0))
    soon = will(v, f"{me}/soon", b"x", b"\x18\0\0\0\1")
    never = will(v, f"{me}/never", b"x", b"\x18\0\0\0\1")
    yield "A", connect(me, properties=HOUR, will=soon, will_flags=4)
    yield "B", connect(f"{me}-b", properties=HOUR, will=never, will_flags=4)
    yield "B", sub(v, 1, (f"{me}/none", 0))
    yield "B", None
    yield "B2", connect(f"{me}-b", clean=False, properties=HOUR)
    yield "A", None
    yield "R", 2.3
