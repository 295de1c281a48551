"""Negotiated limits, and unusual but legal input."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import BODY, METHOD, RawClient, body_frame, frame, header_frame, method_frame, publish_frames


def test_all_channels_that_were_agreed_on(broker: BrokerAddress) -> None:
    """2047 channels can be open on one connection, and each works."""
    with RawClient(broker.host, broker.port) as client:
        client.open()
        client.send(*(method_frame(number, commands.Channel.Open()) for number in range(1, 2048)))
        for _ in range(2047):
            client.expect(commands.Channel.OpenOk)
        client.send(*(method_frame(number, commands.Basic.Qos(prefetch_count=1)) for number in range(1, 2048)))
        for _ in range(2047):
            client.expect(commands.Basic.QosOk)


def test_broker_keeps_to_the_agreed_frame_size(broker: BrokerAddress, control: ControlClient) -> None:
    """With frame_max 4096 no frame of the broker is larger, and a body fills its frames."""
    with RawClient(broker.host, broker.port) as client:
        client.open(frame_max=4096)
        client.open_channel(1)
        queue = client.declare_queue(1, exclusive=True)
        client.send(publish_frames(1, "", queue, b"x" * 10_000))
        client.call(1, commands.Basic.Get(queue=queue, no_ack=True), commands.Basic.GetOk)
        assert client.next().value.body_size == 10_000
        assert [len(client.next().value) for _ in range(3)] == [4088, 4088, 10_000 - 2 * 4088]


def test_largest_frames_are_taken(raw: RawClient) -> None:
    """Frames of exactly the negotiated size are accepted."""
    queue = raw.declare_queue(1, exclusive=True)
    body = b"y" * (131_072 - 8)
    raw.send(publish_frames(1, "", queue, body, piece_bytes=len(body)))
    raw.call(1, commands.Basic.Get(queue=queue, no_ack=True), commands.Basic.GetOk)
    assert raw.expect_content(1)[1] == body


def test_body_in_tiny_and_empty_frames(raw: RawClient) -> None:
    """A body may come in frames of one byte, with empty ones between."""
    queue = raw.declare_queue(1, exclusive=True)
    raw.method(1, commands.Basic.Publish(routing_key=queue))
    raw.send(
        header_frame(1, 300), *(body_frame(1, b"z") + frame(BODY, 1, b"") for _ in range(299)), body_frame(1, b"z")
    )
    raw.call(1, commands.Basic.Get(queue=queue, no_ack=True), commands.Basic.GetOk)
    assert raw.expect_content(1)[1] == b"z" * 300


def test_contents_of_channels_may_be_mixed(raw: RawClient) -> None:
    """Frames of publishes on several channels may alternate; each body stays intact."""
    queue = raw.declare_queue(1, exclusive=True)
    channels = range(2, 12)
    for number in channels:
        raw.open_channel(number)
    for number in channels:
        raw.method(number, commands.Basic.Publish(routing_key=queue))
    for number in channels:
        raw.send(header_frame(number, 50))
    for _ in range(10):
        raw.send(*(body_frame(number, bytes([number]) * 5) for number in channels))
    raw.call(1, commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    bodies = set()
    for _ in channels:
        raw.expect(commands.Basic.Deliver, 1)
        bodies.add(raw.expect_content(1)[1])
    assert bodies == {bytes([number]) * 50 for number in channels}


def test_methods_between_contents_of_other_channels(raw: RawClient) -> None:
    """A method on one channel is answered while another channel's content is half sent."""
    raw.open_channel(2)
    raw.method(2, commands.Basic.Publish(routing_key="nobody"))
    raw.send(header_frame(2, 10), body_frame(2, b"12345"))
    raw.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
    raw.send(body_frame(2, b"67890"))
    raw.call(2, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)


@pytest.mark.parametrize("leave", ["channel close", "hang up"])
def test_half_sent_content_is_forgotten(broker: BrokerAddress, control: ControlClient, leave: str) -> None:
    """A message whose body never arrived completely is not delivered."""
    with RawClient(broker.host, broker.port).with_channel() as client:
        client.method(1, commands.Basic.Publish(routing_key=control.queue))
        client.send(header_frame(1, 10), body_frame(1, b"12345"))
        if leave == "channel close":
            client.open_channel(2)
            client.close()
    control.check()


def test_relayed_header_is_untouched(raw: RawClient) -> None:
    """The bytes of the content header arrive as they were sent, including the types of header values."""
    queue = raw.declare_queue(1, exclusive=True)
    table = b"".join(
        [
            b"\x01tt\x01", b"\x01bb\xff", b"\x01BB\xff", b"\x01ss\xff\xfe", b"\x01uu\xff\xfe",
            b"\x01II\xff\xff\xff\xfe", b"\x01ii\xff\xff\xff\xfe", b"\x01ll" + b"\xff" * 8,
            b"\x01ff" + struct.pack(">f", 1.5),
            b"\x01dd" + struct.pack(">d", 2.5), b"\x01DD\x02\x00\x00\x01\x3a", b"\x01SS\x00\x00\x00\x02\xff\xfe",
            b"\x01xx\x00\x00\x00\x02\xff\xfe", b"\x01TT" + struct.pack(">Q", 1_700_000_000), b"\x01VV",
            b"\x01FF\x00\x00\x00\x04\x01at\x00", b"\x01AA\x00\x00\x00\x03Vt\x01",
        ]
    )  # fmt: skip
    flags, content_type = 0x8000 | 0x2000, b"\x04text"
    properties = struct.pack(">H", flags) + content_type + struct.pack(">I", len(table)) + table
    header = struct.pack(">HHQ", 60, 0, 3) + properties
    raw.method(1, commands.Basic.Publish(routing_key=queue))
    raw.send(frame(2, 1, header), body_frame(1, b"abc"))
    raw.method(1, commands.Basic.Get(queue=queue, no_ack=True))
    # Read frame by frame, because pamqp does not know every type of RabbitMQ's tables.
    kinds = []
    payloads = []
    for _ in range(3):
        kind, _, size = struct.unpack(">BHI", raw._read(7))
        kinds.append(kind)
        payloads.append(raw._read(size + 1)[:-1])
    assert kinds == [METHOD, 2, BODY]
    assert payloads[2] == b"abc"
    assert payloads[1] == header
