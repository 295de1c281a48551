"""The generator's MQTT packets: what it counts and answers, however the packets are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest

from broker.perf.faults import BrokenStream, Refusal
from broker.perf.mqtt_wire import PacketScanner, packet, properties_of, publish

BODY = bytes(range(16))


def properties(size: int) -> bytes:
    """Return a reason string or another property with a text, and before it the length of both in two bytes."""
    return packet(0, b"\x1f" + (size - 3).to_bytes(2, "big") + b"n" * (size - 3))[1:]


def ack(kind: int, packet_id: int, reason: int | None = None, more: bytes = b"") -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    rest = bytes([reason] if reason else []) + more
    return packet(kind << 4 | (2 if kind == 6 else 0), packet_id.to_bytes(2, "big"), rest)


def fed(stream: bytes, step: int, level: int = 5, packet_ids: int = 7) -> tuple[PacketScanner, list[bytes]]:
    """Return a scanner that was fed with a stream in pieces, and the bodies that it passed on."""
    bodies: list[bytes] = []

    def watch(buffer: bytes | bytearray, at: int, stride: int, count: int) -> None:
        bodies.extend(bytes(buffer[at + number * stride :][:16]) for number in range(count))

    scanner = PacketScanner(level, watch)
    scanner.packet_ids = packet_ids
    buffer = bytearray()
    for start, stop in pairwise([*range(0, len(stream), step), len(stream)]):
        buffer += stream[start:stop]
        del buffer[: scanner.scan(buffer, len(buffer))]
    assert not buffer
    return scanner, bodies


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("level", [4, 5])
def test_messages_are_counted_and_acknowledged_once_each(level: int, step: int) -> None:
    """Messages of all QoS and several lengths are counted, and answered by PUBACK and PUBREC in order."""
    one = [publish(level, "a/b", BODY, 1, number, retain=False) for number in range(1, 301)]
    other = [publish(level, "a/longer", BODY + bytes(200), 2, number, retain=True) for number in (7, 999)]
    scanner, bodies = fed(
        b"".join([*one, publish(level, "t", BODY, 0, 0, retain=False), *other, *one[:2]]), step, level
    )
    assert (scanner.deliveries, scanner.body_bytes) == (305, 305 * 16 + 400)
    assert bodies == [BODY] * 305
    answers = [ack(4, number) for number in range(1, 301)] + [ack(5, 7), ack(5, 999), ack(4, 1), ack(4, 2)]
    assert scanner.take_answers() == b"".join(answers)
    assert scanner.take_answers() == b""


@pytest.mark.parametrize("step", [1, 4, 100_000])
def test_confirms_are_counted_past_the_end_of_the_packet_ids_and_out_of_order(step: int) -> None:
    """Packet ids 1 to 7 repeat; 7 of the second pass comes before 6."""
    ids = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 7, 6, 1]
    scanner, _ = fed(b"".join(ack(4, number) for number in ids), step)
    assert (scanner.confirms.count, scanner.confirms.watermark) == (15, 15)


@pytest.mark.parametrize("size", [127, 128, 129, 300])
def test_properties_may_be_long(size: int) -> None:
    """The length of properties is a number of one byte or several, in messages, acknowledgements and a DISCONNECT."""
    long, short = properties(size), properties(120)
    messages = [
        packet(0x32, b"\0\1t", number.to_bytes(2, "big"), octets, BODY)
        for number, octets in enumerate([long, long, short, properties(size + 1), long], 1)
    ]
    scanner, bodies = fed(
        b"".join([*messages, ack(4, 1, 0x97, long), ack(4, 2, 0x97, long), ack(4, 3, 0x10, long)]), 90
    )
    assert (bodies, scanner.body_bytes) == ([BODY] * 5, 5 * 16)
    assert scanner.take_answers() == b"".join(ack(4, number) for number in range(1, 6))
    assert (scanner.confirms.watermark, scanner.nacked, scanner.returned) == (3, 2, 1)
    with pytest.raises(Refusal, match="DISCONNECT 0x8e"):
        fed(packet(0xE0, b"\x8e", long), 1000)
    assert properties_of(long) == {0x1F: "n" * (size - 3)}


def test_refused_and_unrouted_messages_are_counted_by_their_reasons() -> None:
    """0x97 is a nack, 0x10 a message that reached no one."""
    scanner, _ = fed(ack(4, 1) + ack(4, 2, 0x97) + ack(4, 3, 0x10) + ack(4, 4, 0x10), 3)
    assert (scanner.confirms.count, scanner.nacked, scanner.returned) == (4, 1, 2)


def test_a_message_at_qos_2_is_confirmed_by_its_pubcomp() -> None:
    """A PUBREC is answered by PUBREL and a PUBREL by PUBCOMP; a PUBREC with an error ends its message."""
    scanner, _ = fed(ack(5, 1) + ack(5, 2) + ack(5, 3, 0x97) + ack(7, 1) + ack(6, 40), 5)
    assert scanner.take_answers() == ack(6, 1) + ack(6, 2) + ack(7, 40)
    assert (scanner.confirms.count, scanner.nacked) == (2, 1)


def test_what_no_broker_may_send_ends_the_run_with_a_reason() -> None:
    """A DISCONNECT names its reason code; other packets and lengths are errors of the stream."""
    with pytest.raises(Refusal, match="DISCONNECT 0x8e"):
        fed(b"\xe0\x02\x8e\x00", 9)
    with pytest.raises(BrokenStream, match="type 1"):
        fed(b"\x10\x00", 9)
    with pytest.raises(BrokenStream, match="remaining length"):
        fed(b"\x30\xff\xff\xff\xff\x01", 9)


def test_the_properties_of_a_connack_are_read_to_the_end() -> None:
    """Numbers, strings and user properties are told apart."""
    raw = b"\x21\x00\x14\x24\x01" + b"\x26\x00\x01a\x00\x02bc" + b"\x1f\x00\x04full" + b"\x11\x00\x00\x00\x05"
    found = properties_of(bytes((len(raw),)) + raw)
    assert (found[0x21], found[0x24], found[0x1F], found[0x11]) == (20, 1, "full", 5)
    assert properties_of(b"") == {}  # a CONNACK of 3.1.1
