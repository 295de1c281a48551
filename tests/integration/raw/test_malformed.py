"""Malformed bytes: each gets its code, on its own connection or channel, and harms no other client.

Where RabbitMQ 3.10 answers differently, the case says so and gives the reason: the specification, or a limit that
RabbitMQ does not have.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    PeerGone,
    RawClient,
    Received,
    described,
    frame,
    method_frame,
    publish_frames,
)

ALIVE, GONE = 0, -1
"""Nobody is closed; the connection ends without a word (RabbitMQ's crash)."""


@dataclass(frozen=True)
class Case:
    """Bytes, the code that closes the connection (or the channel), and RabbitMQ 3.10's code where it differs."""

    name: str
    octets: bytes
    code: int
    channel: bool = False
    rabbitmq: int | None = None


def short(octets: bytes) -> bytes:
    """Return a short string."""
    return bytes([len(octets)]) + octets


def long(octets: bytes) -> bytes:
    """Return a long string, which is also the framing of a table."""
    return struct.pack(">I", len(octets)) + octets


def method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    """Return a method frame with any numbers and any arguments."""
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def declare(table: bytes, queue: bytes = b"") -> bytes:
    """Return a queue.declare (exclusive) with these bytes as its arguments."""
    return method(50, 10, b"\0\0" + short(queue) + b"\x04" + long(table))


def nested_tables(depth: int) -> bytes:
    """Return a table that holds a table that holds a table."""
    table = b""
    for _ in range(depth):
        table = short(b"a") + b"F" + long(table)
    return table


def nested_arrays(depth: int) -> bytes:
    """Return a table with an array that holds an array that holds an array."""
    array = b""
    for _ in range(depth):
        array = b"A" + long(array)
    return short(b"a") + array


def entries(count: int) -> bytes:
    """Return a table with this many booleans."""
    return b"".join(short(b"%d" % number) + b"t\x01" for number in range(count))


def header(
    *, class_id: int = 60, weight: int = 0, size: int = 0, flags: int = 0, properties: bytes = b"", channel: int = 1
) -> bytes:
    """Return a content header frame with any numbers."""
    return frame(HEADER, channel, struct.pack(">HHQH", class_id, weight, size, flags) + properties)


PUBLISH = method_frame(1, commands.Basic.Publish(routing_key="nobody-listens"))
QOS = method_frame(1, commands.Basic.Qos())
MAX_MESSAGE_BYTES = 134_217_728

FRAMES = [
    Case("wrong end octet", QOS[:-1] + b"\0", 501),
    Case("heartbeat with a wrong end octet", frame(HEARTBEAT, 0, b"", end=0), 501),
    # Section 4.2.7 requires 501 here; RabbitMQ answers 505.
    Case("heartbeat on a channel", frame(HEARTBEAT, 1, b""), 505),
    Case("heartbeat on a closed channel", frame(HEARTBEAT, 5, b""), 505),
    Case("heartbeat with a payload on a channel", frame(HEARTBEAT, 1, b"x"), 501),
    Case("heartbeat with a payload", frame(HEARTBEAT, 0, b"x"), 501),
    *(Case(f"frame type {kind}", frame(kind, 1, b"abc"), 501) for kind in (0, 4, 5, 6, 7, 9, 65, 255)),
    Case("frame type 0 on channel 0", frame(0, 0, b""), 501),
    Case("greater than frame_max by its head alone", struct.pack(">BHI", METHOD, 1, 0xFFFFFFFF), 501),
    Case("one octet greater than frame_max", struct.pack(">BHI", BODY, 1, 131_073), 501),
    Case("method frame without a method", frame(METHOD, 1, b""), 502, rabbitmq=501),
    Case("method frame of one octet", frame(METHOD, 1, b"\0"), 502, rabbitmq=501),
    Case("method frame of three octets", frame(METHOD, 1, b"\0\x3c\0"), 502, rabbitmq=501),
    Case("method frame without a method on channel 0", frame(METHOD, 0, b""), 502, rabbitmq=501),
    Case("protocol header in mid-conversation", PROTOCOL_HEADER, 501),
    Case("HTTP", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", 501),
]

METHODS = [
    # 540 is the code for methods that are not implemented (section 1.2); RabbitMQ's reader crashes.
    Case("unknown class", method(61, 10), 540, rabbitmq=GONE),
    Case("unknown class on channel 0", method(61, 10, channel=0), 540, rabbitmq=GONE),
    Case("unknown method", method(60, 99), 540, rabbitmq=GONE),
    Case("class 0", method(0, 0), 540, rabbitmq=GONE),
    # Removed from 0-9-1; RabbitMQ still answers it, and so does this broker.
    Case("access.request", method(30, 10, short(b"/data") + b"\0"), ALIVE),
    # Malformed content of a complete frame is a syntax error (502); RabbitMQ calls it a frame error.
    Case("arguments missing", method(60, 10), 502, rabbitmq=501),
    Case("arguments cut short", method(60, 10, b"\0\0"), 502, rabbitmq=501),
    Case("octets after the arguments", method(60, 10, b"\0" * 8), 502, rabbitmq=501),
    Case(
        "octets after the table", method(50, 10, b"\0\0" + short(b"") + b"\x04" + long(b"") + b"zz"), 502, rabbitmq=501
    ),
    Case("short string longer than the frame", method(50, 10, b"\0\0\xffabc"), 502, rabbitmq=501),
    Case("name that is not UTF-8", declare(b"", b"\xff\xfe"), 501),
    Case("publish cut short", method(60, 40, b"\0\0") + header(), 502, rabbitmq=501),
    Case("publish with octets after it", method(60, 40, b"\0" * 5 + b"zz") + header(), 502, rabbitmq=501),
    Case("open cut short", method(20, 10, b"", channel=5), 502, rabbitmq=501),
]

TABLES = [
    Case("longer than the frame", method(50, 10, b"\0\0\0\x04" + struct.pack(">I", 1000) + b"abc"), 502, rabbitmq=501),
    Case("unknown type of value", declare(short(b"a") + b"?x"), 502, rabbitmq=GONE),
    Case("key longer than the table", declare(b"\xffab"), 502, rabbitmq=GONE),
    Case("key without a value", declare(short(b"a")), 502, rabbitmq=GONE),
    Case(
        "long string longer than the table",
        declare(short(b"a") + b"S" + struct.pack(">I", 99) + b"x"),
        502,
        rabbitmq=GONE,
    ),
    Case("integer cut short", declare(short(b"a") + b"I\0\0"), 502, rabbitmq=GONE),
    Case("timestamp cut short", declare(short(b"a") + b"T\0\0\0"), 502, rabbitmq=GONE),
    Case(
        "array longer than the table", declare(short(b"a") + b"A" + struct.pack(">I", 9) + b"t\x01"), 502, rabbitmq=GONE
    ),
    Case(
        "table longer than the table", declare(short(b"a") + b"F" + struct.pack(">I", 9) + b"\x01b"), 502, rabbitmq=GONE
    ),
    Case("tables 8 deep", declare(nested_tables(8)), ALIVE),
    # RabbitMQ does not limit depth and number; each costs it memory in proportion.
    Case("tables 64 deep", declare(nested_tables(64)), 502, rabbitmq=ALIVE),
    Case("tables 5,000 deep", declare(nested_tables(5000)), 502, rabbitmq=ALIVE),
    Case("arrays 20,000 deep", declare(nested_arrays(20_000)), 502, rabbitmq=ALIVE),
    Case("1,000 entries", declare(entries(1000)), ALIVE),
    Case("8,000 entries", declare(entries(8000)), 502, rabbitmq=ALIVE),
    Case("60,000 booleans in an array", declare(short(b"a") + b"A" + long(b"t\x01" * 60_000)), 502, rabbitmq=ALIVE),
    Case("100,000 values of no width", declare(short(b"a") + b"A" + long(b"V" * 100_000)), 502, rabbitmq=ALIVE),
]

CONTENTS = [
    Case("content header without a publish", header(), 505),
    Case("body without a publish", frame(BODY, 1, b"abc"), 505),
    Case("content header on channel 0", header(channel=0), 505),
    Case("body on channel 0", frame(BODY, 0, b"abc"), 505),
    Case("content header on a closed channel", header(channel=5), 505),
    Case("body on a closed channel", frame(BODY, 5, b"x"), 505),
    Case("body before the content header", PUBLISH + frame(BODY, 1, b"abc"), 505),
    Case("publish before the content header", PUBLISH + PUBLISH, 505),
    Case("method before the content header", PUBLISH + QOS, 505),
    Case("method before the body", PUBLISH + header(size=3) + QOS, 505),
    Case("two content headers", PUBLISH + header(size=3) + header(size=3), 505),
    Case("content header behind an empty message", PUBLISH + header() + header(), 505),
    Case("body behind an empty message", PUBLISH + header() + frame(BODY, 1, b"x"), 505),
    Case("content header of another class", PUBLISH + header(class_id=50), 505),
    Case("weight other than 0", PUBLISH + header(weight=1), 505),
    Case("content header without octets", PUBLISH + frame(HEADER, 1, b""), 501),
    Case("content header cut short", PUBLISH + frame(HEADER, 1, b"\0\x3c\0\0"), 501),
    # RabbitMQ detects these when it decodes the properties, if at all, and reports an internal error.
    Case("flag without its property", PUBLISH + header(flags=0x8000), 502, rabbitmq=541),
    Case("octets after the properties", PUBLISH + header(properties=b"xx"), 502, rabbitmq=541),
    Case("short string beyond the header", PUBLISH + header(flags=0x8000, properties=b"\x09ab"), 502, rabbitmq=541),
    Case(
        "headers table with a bad type",
        PUBLISH + header(flags=0x2000, properties=long(short(b"a") + b"?x")),
        502,
        rabbitmq=541,
    ),
    Case(
        "headers table beyond the header", PUBLISH + header(flags=0x2000, properties=b"\0\0\xff\xff"), 502, rabbitmq=541
    ),
    Case("flags of no property", PUBLISH + header(flags=0x0002), 502, rabbitmq=ALIVE),
    Case("second flags word announced, none there", PUBLISH + header(flags=0x0001), 502, rabbitmq=ALIVE),
    Case("headers 100 deep", PUBLISH + header(flags=0x2000, properties=long(nested_tables(100))), 502, rabbitmq=ALIVE),
    Case(
        "headers 5,000 deep", PUBLISH + header(flags=0x2000, properties=long(nested_tables(5000))), 502, rabbitmq=ALIVE
    ),
    # RabbitMQ 3.10 never compares body and declared size (CVE-2026-67235): a last frame may be too long.
    Case("more body than declared", PUBLISH + header(size=3) + frame(BODY, 1, b"abcd"), 501, rabbitmq=ALIVE),
    Case("body frame behind the body", PUBLISH + header(size=3) + frame(BODY, 1, b"abc") + frame(BODY, 1, b"d"), 505),
    Case("empty body frame", PUBLISH + header(size=3) + frame(BODY, 1, b"") + frame(BODY, 1, b"abc"), ALIVE),
    # Refused at the header; RabbitMQ waits for the body first.
    Case("body one octet too large", PUBLISH + header(size=MAX_MESSAGE_BYTES + 1), 406, channel=True, rabbitmq=ALIVE),
    Case("body of 2^63 octets", PUBLISH + header(size=1 << 63), 406, channel=True, rabbitmq=ALIVE),
    Case("greatest body, announced only", PUBLISH + header(size=MAX_MESSAGE_BYTES), ALIVE),
]

STATES = [
    Case("immediate", publish_frames(1, "", "nobody", b"", immediate=True), 540),
    Case("prefetch size", method_frame(1, commands.Basic.Qos(prefetch_size=1)), 540),
    Case("recover without requeue", method_frame(1, commands.Basic.Recover(requeue=False)), 540),
    Case("recover-async without requeue", method(60, 100, b"\0"), 540),
    Case("flow switched off", method_frame(1, commands.Channel.Flow(active=False)), 540),
    Case("channel opened twice", method_frame(1, commands.Channel.Open()), 504),
    Case("method on a closed channel", method_frame(5, commands.Basic.Qos()), 504),
    Case("publish on a closed channel", publish_frames(5, "", "nobody", b"x"), 504),
    Case("method on channel 0", method_frame(0, commands.Basic.Qos()), 504),
    Case("connection method on a channel", method_frame(1, commands.Connection.Open()), 503),
    Case("answer as a request", method_frame(1, commands.Basic.QosOk()), 503),
]

CASES = {
    f"{group}: {case.name}": case
    for group, cases in {
        "frame": FRAMES, "method": METHODS, "table": TABLES, "content": CONTENTS, "state": STATES,
    }.items()
    for case in cases
}  # fmt: skip


def outcome(client: RawClient) -> tuple[int, str]:
    """Return the code of the following close, ALIVE if a channel opens instead, or GONE."""
    while True:
        try:
            received = client.next()
        except PeerGone:
            return GONE, "connection gone without a close"
        if isinstance(received.value, commands.Connection.Close):
            client.method(0, commands.Connection.CloseOk())
            return int(received.value.reply_code or 0), "connection"
        if isinstance(received.value, commands.Channel.Close):
            assert received.channel == 1, described(received)
            return int(received.value.reply_code or 0), "channel"
        if isinstance(received.value, commands.Channel.OpenOk) and received.channel == 9:
            return ALIVE, "alive"
        assert answers(received), f"unexpected: {described(received)}"


def answers(received: Received) -> bool:
    """Return whether a frame answers a method that was accepted."""
    return isinstance(received.value, (commands.Queue.DeclareOk, bytes))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_malformed(broker: BrokerAddress, control: ControlClient, case: Case, oracle: bool) -> None:
    """Malformed input is answered with its code, closes what it must, and does not affect the control client."""
    expected = case.rabbitmq if oracle and case.rabbitmq is not None else case.code
    with RawClient(broker.host, broker.port).with_channel() as client:
        client.send(case.octets)
        if oracle:
            client.readable(0.3)  # RabbitMQ's channels are processes: one may answer later than the reader
        client.method(9, commands.Channel.Open())  # the answer, when nothing was closed
        code, what = outcome(client)
        assert code == expected, f"expected {expected}, got {code}"
        if code == 406:
            assert what == "channel"
            client.expect(commands.Channel.OpenOk, 9)
            client.method(1, commands.Channel.CloseOk())
            client.open_channel(1)
        elif code > 0:
            assert what == "connection"
            client.expect_end()
        control.check()
