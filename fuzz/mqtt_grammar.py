"""Conversations of MQTT clients, valid but for their chances: packets as octets."""

from __future__ import annotations

from random import Random

from broker.mqtt.wire import binary, text, varint

TOPICS = [b"a", b"a/b", b"home/+", b"", b"a\0b", b"\xff", b"$SYS/x", b"x" * 300, b"sensor/1/temperature", b"/"]
ACKS = [0x40, 0x50, 0x62, 0x70]
FILTERS = ["#", "a/#", "+/b", "a/#/b", "$share/g/a", "a+", "*", "a.b/+", "/" * 70]


def packet(first: int, body: bytes) -> bytes:
    """Return a packet with its header."""
    return bytes([first]) + varint(len(body)) + body


def properties(rng: Random, version: int, *choices: bytes) -> bytes:
    """Return some properties with their length; nothing in 3.1.1."""
    if version != 5:
        return b""
    chosen = b"".join(rng.sample(choices, rng.randrange(len(choices) + 1))) if choices else b""
    return varint(len(chosen)) + chosen


def connect(rng: Random, version: int) -> bytes:
    """Return a CONNECT packet."""
    flags = rng.choice([0x02, 0x00, 0xC2, 0x82])
    payload = text(rng.choice(["", "client", "ü"]))
    if rng.random() < 0.3:
        flags |= rng.choice([0x04, 0x0C, 0x24])
        payload += properties(rng, version, b"\x18\0\0\0\x05", b"\x02\0\0\0\x05") + text("will") + binary(b"bye")
    if flags & 0x80:
        payload += text(rng.choice(["guest", "/:guest"]))
    if flags & 0x40:
        payload += binary(b"guest")
    extra = properties(rng, version, b"\x11\0\0\0\x3c", b"\x21\0\x0a", b"\x26\0\1a\0\1b", b"\x17\0", b"\x27\0\0\x10\0")
    return packet(0x10, text("MQTT") + bytes([version, flags]) + b"\0\x3c" + extra + payload)


def publish(rng: Random, version: int) -> bytes:
    """Return a PUBLISH packet."""
    qos = rng.choice([0, 1, 1, 2])
    packet_id = rng.choice([1, 2, 300, 65535]).to_bytes(2, "big") if qos else b""
    extra = properties(
        rng, version, b"\x01\1", b"\x02\0\0\0\x09", b"\x03\0\1t", b"\x26\0\1a\0\1b", b"\x09\0\2id", b"\x23\0\1"
    )
    body = rng.randbytes(rng.choice([0, 1, 16, 130, 20_000]))
    topic = TOPICS[0] if rng.random() < 0.7 else rng.choice(TOPICS)
    return packet(0x30 | qos << 1 | (rng.random() < 0.05), binary(topic) + packet_id + extra + body)


def conversation(rng: Random, version: int) -> list[bytes]:
    """Return the packets of one client."""
    packets = [connect(rng, version)]
    for _ in range(rng.randrange(12)):
        packet_id = rng.choice([1, 2, 700]).to_bytes(2, "big")
        kind = rng.random()
        if kind < 0.5:
            packets += [publish(rng, version)] * rng.choice([1, 1, 2, 5])
        elif kind < 0.65:
            packets.append(packet(rng.choice(ACKS), packet_id) * rng.choice([1, 3]))
        elif kind < 0.7:
            packets.append(packet(rng.choice(ACKS), packet_id + (b"\x97\0" if version == 5 else b"")))
        elif kind < 0.85:
            filters = b"".join(text(rng.choice(FILTERS)) + bytes([rng.choice([0, 1, 2])]) for _ in range(3))
            packets.append(packet(0x82, packet_id + properties(rng, version, b"\x0b\x07") + filters))
        elif kind < 0.92:
            packets.append(packet(0xA2, packet_id + properties(rng, version) + text(rng.choice(FILTERS))))
        elif kind < 0.99:
            packets.append(packet(0xC0, b""))
        else:
            packets.append(packet(0xF0, rng.choice([b"", b"\x18\x04\x15\0\1a"])))
    if rng.random() < 0.5:
        packets.append(packet(0xE0, rng.choice([b"", b"\x04", b"\x00\x05\x11\0\0\0\x0a"]) if version == 5 else b""))
    return packets
