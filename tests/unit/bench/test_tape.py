"""The generator's encoder and its tapes, decoded by pamqp."""

from __future__ import annotations

import pytest
from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from bench import tape
from broker.perf import wire
from broker.perf.scanner import Scanner

Decoded = Frame | ContentBody | ContentHeader | Heartbeat


def decode(stream: bytes) -> list[tuple[int, Decoded]]:
    """Return (channel, frame) for every frame in the stream, by pamqp."""
    found = []
    while stream:
        size, channel, one = frame.unmarshal(stream)
        assert isinstance(one, Frame | ContentBody | ContentHeader | Heartbeat)
        found.append((channel, one))
        stream = stream[size:]
    return found


def test_keys_are_distinct_and_of_one_length() -> None:
    """Every message of a tape has its own routing key, all of one length, as the stride requires."""
    keys = tape.routing_keys(10_000)
    assert len(set(keys)) == 10_000
    assert len({len(key) for key in keys}) == 1
    assert keys != sorted(keys)


def test_publish_tape_reads_back() -> None:
    """A tape has complete messages at every stride, with the configured delivery mode and body size."""
    made = tape.publish_tape(50, 100, persistent=True)
    assert len(made.buffer) == made.messages * made.stride_bytes
    keys = set()
    for at in range(0, len(made.buffer), made.stride_bytes):
        (one, method), (two, head), (three, content) = decode(made.buffer[at : at + made.stride_bytes])
        assert (one, two, three) == (wire.PUBLISH_CHANNEL,) * 3
        assert isinstance(method, commands.Basic.Publish)
        assert isinstance(head, ContentHeader)
        assert isinstance(content, ContentBody)
        assert (head.body_size, len(content.value), head.properties.delivery_mode) == (100, 100, 2)
        assert method.exchange == tape.EXCHANGE
        keys.add(method.routing_key)
    assert keys == set(tape.routing_keys(50))


def test_deliver_tape_counts_in_the_scanner() -> None:
    """The scanner counts the relay's output as deliveries, so the ceiling measures the same consumer."""
    made = tape.deliver_tape(200, 16, persistent=False)
    scanner = Scanner()
    assert scanner.scan(bytearray(made.buffer), len(made.buffer)) == len(made.buffer)
    assert (scanner.deliveries, scanner.body_bytes) == (200, 3200)


@pytest.mark.parametrize(
    ("encoded", "channel", "expected"),
    [
        (
            wire.exchange_declare(1, "x", "topic", durable=True),
            1,
            commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True),
        ),
        (wire.queue_declare(2, "q", durable=True), 2, commands.Queue.Declare(queue="q", durable=True)),
        (wire.queue_bind(1, "q", "x", "a.*.#"), 1, commands.Queue.Bind(queue="q", exchange="x", routing_key="a.*.#")),
        (wire.queue_delete(1, "q"), 1, commands.Queue.Delete(queue="q")),
        (wire.exchange_delete(1, "x"), 1, commands.Exchange.Delete(exchange="x")),
        (wire.basic_qos(2, 1000), 2, commands.Basic.Qos(prefetch_count=1000)),
        (
            wire.basic_consume(2, "q", "tag", auto_ack=True),
            2,
            commands.Basic.Consume(queue="q", consumer_tag="tag", no_ack=True),
        ),
        (wire.basic_ack(2, 1 << 40, multiple=True), 2, commands.Basic.Ack(1 << 40, multiple=True)),
        (wire.close(0, wire.CONNECTION_CLOSE), 0, commands.Connection.Close(200, "done", 0, 0)),
        (wire.method(1, wire.CONFIRM_SELECT, b"\x00"), 1, commands.Confirm.Select()),
    ],
)
def test_method_reads_back_as_pamqp_writes_it(encoded: bytes, channel: int, expected: Frame) -> None:
    """Each method that the generator sends has the octets that pamqp encodes."""
    assert encoded == frame.marshal(expected, channel)


def test_start_ok_carries_credentials_and_capabilities() -> None:
    """connection.start-ok has the PLAIN response and the generator's capabilities."""
    [(_, start_ok)] = decode(wire.start_ok("guest", "secret"))
    assert isinstance(start_ok, commands.Connection.StartOk)
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", "\x00guest\x00secret")
    capabilities = start_ok.client_properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities["connection.blocked"] is True
