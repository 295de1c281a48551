"""Ends of channels and connections: clean from both sides, crossing, abrupt, and their effects."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import PeerGone, RawClient, publish_frames

CLOSE: dict[str, Any] = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}


def test_closing_channel_discards_what_was_on_its_way(raw: RawClient, name: str) -> None:
    """Between the broker's channel.close and close-ok the channel's methods are discarded, including contents."""
    queue = raw.declare_queue(1, exclusive=True)
    raw.method(1, commands.Queue.Purge(queue=name))
    raw.send(publish_frames(1, "", queue, b"too late") * 3)
    raw.method(1, commands.Queue.Declare(queue=name))
    raw.method(1, commands.Basic.Qos(prefetch_size=7))
    raw.expect_channel_close(1, 404)
    raw.open_channel(1)
    assert raw.call(1, commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk).message_count == 0
    raw.method(1, commands.Queue.Declare(queue=name, passive=True))
    raw.expect_channel_close(1, 404)


def test_closing_connection_discards_what_was_on_its_way(broker: BrokerAddress, control: ControlClient) -> None:
    """Between the broker's connection.close and close-ok the broker discards everything that the client sends."""
    queue = control.queue
    with RawClient(broker.host, broker.port).with_channel() as client:
        client.open_channel(2)
        client.method(1, commands.Basic.Qos(prefetch_size=7))
        assert client.readable(20)
        client.send(publish_frames(2, "", queue, b"too late") * 3)
        client.method(2, commands.Queue.Delete(queue=queue))
        client.expect_connection_close(540)
    control.check()


def test_close_of_one_channel_leaves_the_others(raw: RawClient) -> None:
    """A consumer on another channel keeps working while channels are closed by error and by request."""
    queue = raw.declare_queue(1, exclusive=True)
    raw.call(1, commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    for number in range(2, 30):
        raw.open_channel(number)
        raw.send(publish_frames(number, "", queue, str(number).encode()))
        raw.expect(commands.Basic.Deliver, 1)
        assert raw.expect_content(1)[1] == str(number).encode()
        if number % 2:
            raw.call(number, commands.Channel.Close(**CLOSE), commands.Channel.CloseOk)
        else:
            raw.method(number, commands.Basic.Ack(delivery_tag=5))
            raw.expect_channel_close(number, 406)


def test_bytes_behind_close_do_not_reset_the_connection(broker: BrokerAddress, control: ControlClient) -> None:
    """A client whose frames are still in transit when it closes reads close-ok and end of file, not a reset."""
    late = publish_frames(1, "", control.queue, bytes(100_000)) * 80
    with RawClient(broker.host, broker.port).with_channel() as client:
        client.method(0, commands.Connection.Close(**CLOSE))
        client.socket.sendall(late)  # more than the sockets buffer: the broker has to read it
        client.expect(commands.Connection.CloseOk, 0)
        with pytest.raises(PeerGone, match="end of file"):
            client.receive()
        client.socket.sendall(late)  # and it keeps reading until the client closes
    control.check()
