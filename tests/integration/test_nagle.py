"""A client that leaves Nagle's algorithm on does not wait for delayed acknowledgements."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from pamqp import commands

from broker.net import transport
from broker.net.prompt_ack import WAITS, acknowledge
from tests.raw_client import RawClient, body_frame, header_frame, method_frame
from tests.raw_talk import mortal_broker, talk

MOST = 60
"""More tries than a machine needs on which every thread may stand still for a while."""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is an option of Linux"),
    pytest.mark.interpreted("a function of the transport is replaced"),
]


async def test_reads_without_an_answer_are_acknowledged_once_the_client_was_seen_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishes in two segments, each followed by a get, are acknowledged at once after three waits."""
    ends: list[socket.socket] = []

    def counted(end: socket.socket) -> None:
        ends.append(end)
        acknowledge(end)

    def connected() -> RawClient:
        client = RawClient("127.0.0.1", broker.listener.port)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        client.open()
        client.open_channel()
        client.declare_queue(1, "q")
        return client

    def publish_and_get(client: RawClient) -> None:
        client.send(method_frame(1, commands.Basic.Publish(routing_key="q")))
        client.send(header_frame(1, 1) + body_frame(1, b"m"))
        client.method(1, commands.Basic.Get(queue="q", no_ack=True))
        client.expect(commands.Basic.GetOk, 1)
        client.expect_content(1)

    def with_nagle() -> int:
        """Return after how many publishes the client was seen waiting."""
        for _ in range(MOST):
            with connected() as client:
                if ends:  # tune-ok was read alone: the client held connection.open back
                    break
        assert ends
        with connected() as client:
            ends.clear()
            for count in range(MOST):
                publish_and_get(client)
                if ends:
                    return count
        raise AssertionError("the client was not seen waiting")

    monkeypatch.setattr(transport, "acknowledge", counted)
    async with mortal_broker(tmp_path) as broker:
        assert await talk(broker, with_nagle) >= WAITS - 1
