"""Generates a client's frames: well-formed frames with random contents, as input of the mutators.

It encodes octets without the broker's codec, so that a mistake there is not repeated here.
"""

from __future__ import annotations

import struct
from random import Random

from pamqp import base, commands

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
INDEX: dict[int, type[base.Frame]] = commands.INDEX_MAPPING
METHODS = list(INDEX.values())
# The most frequent methods of clients; other methods are generated now and then.
FREQUENT: list[type[base.Frame]] = [
    commands.Basic.Ack,
    commands.Basic.Cancel,
    commands.Basic.Consume,
    commands.Basic.Get,
    commands.Basic.Nack,
    commands.Basic.Qos,
    commands.Confirm.Select,
    commands.Exchange.Declare,
    commands.Queue.Bind,
    commands.Queue.Declare,
]
PROPERTY_TYPES = [
    *("shortstr", "shortstr", "table", "octet", "octet", "shortstr", "shortstr"),
    *("shortstr", "shortstr", "timestamp", "shortstr", "shortstr", "shortstr", "shortstr"),
]
FIXED_TYPES = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8}
FIXED_TYPES |= {b"f": 4, b"d": 8, b"D": 5, b"T": 8, b"V": 0}


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def short_string(rng: Random) -> bytes:
    """Return a short string: mostly a name, sometimes random octets, or the maximum length."""
    roll = rng.random()
    if roll < 0.98:
        text = rng.choice([b"", b"q", b"amq.topic", b"x" * 127, "päivä".encode(), b"a.b.#.*"])
    else:
        text = rng.randbytes(rng.choice([1, 5, 255]))
    return bytes([len(text)]) + text


def counted(octets: bytes) -> bytes:
    """Return octets with a length prefix."""
    return struct.pack(">I", len(octets)) + octets


def value(rng: Random, depth: int) -> bytes:
    """Return a typed value of a table or array, nested at most `depth` levels."""
    roll = rng.random()
    if roll < 0.6 or depth == 0:
        kind = rng.choice(list(FIXED_TYPES))
        return kind + rng.randbytes(FIXED_TYPES[kind])
    if roll < 0.8:
        return rng.choice([b"S", b"x"]) + counted(rng.randbytes(rng.choice([0, 1, 20])))
    if roll < 0.9:
        return b"F" + table(rng, depth - 1)
    return b"A" + counted(b"".join(value(rng, depth - 1) for _ in range(rng.randrange(4))))


def table(rng: Random, depth: int = 4) -> bytes:
    """Return a table; sometimes one at the limits of depth or entries."""
    roll = rng.random()
    if roll < 0.02:
        octets = counted(b"")
        for _ in range(rng.choice([15, 16, 17, 200])):
            octets = counted(b"\x01kF" + octets)
        return octets
    if roll < 0.03:
        return counted(b"\x01kA" + counted(b"V" * rng.choice([4094, 4095, 4096, 5000])))
    return counted(b"".join(short_string(rng) + value(rng, depth) for _ in range(rng.randrange(4))))


def method(rng: Random, kind: type[base.Frame] | None = None) -> bytes:
    """Return the payload of a method, a random one by default."""
    kind = kind or rng.choice(FREQUENT if rng.random() < 0.9 else METHODS)
    octets = struct.pack(">I", kind.index)
    bits = False
    for name in kind.attributes():
        field = kind.amqp_type(name)
        if field == "bit":
            octets += b"" if bits else bytes([rng.randrange(32)])
        elif field == "shortstr":
            octets += short_string(rng)
        elif field == "longstr":
            octets += counted(rng.randbytes(rng.choice([0, 3, 100])))
        elif field == "table":
            octets += table(rng)
        else:
            octets += rng.randbytes({"octet": 1, "short": 2, "long": 4, "longlong": 8}[field])
        bits = field == "bit"
    return octets


def header(rng: Random, body_bytes: int) -> bytes:
    """Return the payload of a content header with random properties."""
    flags, octets = 0, b""
    for place, kind in enumerate(PROPERTY_TYPES):
        if rng.random() < 0.2:
            flags |= 1 << 15 - place
            if kind == "table":
                octets += table(rng)
            else:
                octets += short_string(rng) if kind == "shortstr" else rng.randbytes(1 if kind == "octet" else 8)
    return struct.pack(">HHQH", 60, 0, body_bytes, flags) + octets


def publish(rng: Random, channel: int) -> list[bytes]:
    """Return the frames of a publish, with zero, one or several body frames."""
    body = rng.randbytes(rng.choice([0, 0, 1, 16, 16, 500]))
    pieces = rng.choice([1, 1, 1, 2, 3])
    size = -(-len(body) // pieces) or 1
    return [
        frame(1, channel, method(rng, commands.Basic.Publish)),
        frame(2, channel, header(rng, len(body))),
        *[frame(3, channel, body[at : at + size]) for at in range(0, len(body), size)],
        *[frame(3, channel, b"")] * (rng.random() < 0.02),
    ]


def handshake(rng: Random) -> list[bytes]:
    """Return the frames that open a connection, sometimes with extreme limits."""
    capabilities = b"\x0ccapabilitiesF" + counted(b"\x1cauthentication_failure_closet\x01")
    response = b"\0guest\0guest" if rng.random() < 0.95 else rng.randbytes(8)
    start_ok = b"\x00\x0a\x00\x0b" + counted(capabilities) + b"\x05PLAIN" + counted(response) + b"\x05en_US"
    frame_max = rng.choice([131072] * 40 + [8192, 4096, 4095, 0, 131073])
    tune_ok = b"\x00\x0a\x00\x1f" + struct.pack(">HIH", rng.choice([2047] * 40 + [1, 0, 2048]), frame_max, 60)
    return [frame(1, 0, start_ok), frame(1, 0, tune_ok), frame(1, 0, b"\x00\x0a\x00\x28\x01/\x00\x00")]


def conversation(rng: Random) -> list[bytes]:
    """Return the frames of a client that opens channels and uses them, mostly in a valid order."""
    frames = handshake(rng)
    channels = rng.sample([1, 2, 3, 2047], rng.randrange(1, 4)) + [65535] * (rng.random() < 0.02)
    for channel in channels:
        frames.append(frame(1, channel, b"\x00\x14\x00\x0a\x00"))
    for _ in range(rng.choice([1, 4, 8, 20])):
        channel = rng.choice(channels)
        roll = rng.random()
        if roll < 0.4:
            frames += publish(rng, channel)
        elif roll < 0.45:
            frames.append(frame(8, 0, b""))
        elif roll < 0.47:
            frames.append(frame(1, 0, method(rng, rng.choice(METHODS))))
        elif roll < 0.55:
            again = [commands.Channel.Close, commands.Channel.CloseOk, commands.Channel.Open]
            frames += [frame(1, channel, method(rng, kind)) for kind in rng.choice([again, again[::2], again[:2]])]
        else:
            frames.append(frame(1, channel, method(rng)))
    return frames
