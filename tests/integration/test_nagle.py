"""A client that leaves Nagle's algorithm on does not wait for delayed acknowledgements."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from pamqp import commands

from broker.net import transport
from broker.net.transport import SMALL_READ_BYTES, WAITS, PromptAck, Transport, acknowledge
from tests.raw_client import RawClient, body_frame, header_frame, method_frame
from tests.raw_talk import mortal_broker, talk

MOST = 60
"""More tries than a machine needs on which every thread may stand still for a while."""

METHOD = method_frame(1, commands.Basic.Publish(routing_key="q"))
CONTENT = header_frame(1, 1) + body_frame(1, b"m")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is an option of Linux"),
    pytest.mark.interpreted("a function of the transport is replaced"),
]


class Acknowledged(list[socket.socket]):
    """The sockets whose reads were acknowledged at once, and how often a client was seen waiting before."""

    waits = 0

    def acknowledge(self, end: socket.socket) -> None:
        """Record the socket, and acknowledge."""
        self.append(end)
        acknowledge(end)


@pytest.fixture
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> Acknowledged:
    """Record what the broker acknowledges at once."""
    found = Acknowledged()
    note_wait = PromptAck._note_wait

    def counted(prompt_ack: PromptAck) -> None:
        found.waits += 1
        note_wait(prompt_ack)

    monkeypatch.setattr(PromptAck, "_note_wait", counted)
    monkeypatch.setattr(transport, "acknowledge", found.acknowledge)
    return found


def until_acknowledged(port: int, acknowledged: Acknowledged, *segments: bytes) -> None:
    """Connect, then publish in these segments and get, until a read was acknowledged at once."""
    for _ in range(MOST):
        with connected(port):
            if acknowledged:  # tune-ok was read alone: the client held connection.open back
                break
    assert acknowledged
    with connected(port) as client:
        acknowledged.clear()
        acknowledged.waits = 0
        for _ in range(MOST):
            for segment in segments:
                client.send(segment)
            client.method(1, commands.Basic.Get(queue="q", no_ack=True))
            client.expect(commands.Basic.GetOk, 1)
            client.expect_content(1)
            if acknowledged:
                return
    raise AssertionError("nothing was acknowledged")


def connected(port: int) -> RawClient:
    """Return a client with a channel and a queue, and with Nagle's algorithm on."""
    client = RawClient("127.0.0.1", port)
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    client.open()
    client.open_channel()
    client.declare_queue(1, "q")
    return client


async def test_half_a_publish_is_acknowledged(
    tmp_path: Path, acknowledged: Acknowledged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client need not be seen waiting first."""
    monkeypatch.setattr(PromptAck, "_note_wait", lambda _prompt_ack: None)
    async with mortal_broker(tmp_path) as broker:
        port = broker.listener.port
        await talk(broker, lambda: until_acknowledged(port, acknowledged, METHOD, CONTENT))


async def test_whole_publishes_are_acknowledged_once_the_client_was_seen_waiting(
    tmp_path: Path, acknowledged: Acknowledged
) -> None:
    """A get that follows a publish waits once."""
    async with mortal_broker(tmp_path) as broker:
        port = broker.listener.port
        await talk(broker, lambda: until_acknowledged(port, acknowledged, METHOD + CONTENT))
    assert acknowledged.waits >= WAITS


async def test_large_reads_amid_a_body_are_not_acknowledged_one_by_one(
    tmp_path: Path, acknowledged: Acknowledged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel acknowledges them by itself; to make it do so costs two system calls for each read."""
    monkeypatch.setattr(PromptAck, "_note_wait", lambda _prompt_ack: None)
    received = Transport.data_received
    large: list[int] = []
    """How many acknowledgements each large read led to."""

    def counted(self: Transport, data: bytes) -> None:
        before = len(acknowledged)
        received(self, data)
        if len(data) > SMALL_READ_BYTES:
            large.append(len(acknowledged) - before)

    monkeypatch.setattr(Transport, "data_received", counted)
    parts = 40

    def publish(port: int) -> None:
        with connected(port) as client:
            client.send(METHOD + header_frame(1, parts << 16))
            for _ in range(parts):
                client.send(body_frame(1, bytes(1 << 16)))
            client.method(1, commands.Basic.Get(queue="q", no_ack=True))
            client.expect(commands.Basic.GetOk, 1)
            client.expect_content(1)

    async with mortal_broker(tmp_path) as broker:
        await talk(broker, publish, broker.listener.port)
    assert large
    assert sum(large) == 0
