"""Ends of channels and connections: clean from both sides, crossing, abrupt, and their effects."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.deadline import wait_until
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import PeerGone, RawClient, publish_frames

CLOSE: dict[str, Any] = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}


def test_channel_close_names_the_method(raw: RawClient, name: str) -> None:
    """channel.close carries code, text, class and method of the error."""
    raw.method(1, commands.Queue.Purge(queue=name))
    close = raw.expect_channel_close(1, 404)
    assert close.reply_text == f"NOT_FOUND - no queue '{name}' in vhost '/'"
    assert (close.class_id, close.method_id) == (50, 30)


def test_connection_close_names_the_method(raw: RawClient) -> None:
    """connection.close carries code, text, class and method of the error."""
    raw.method(1, commands.Basic.Qos(prefetch_size=7))
    close = raw.expect_connection_close(540)
    assert close.reply_text == "NOT_IMPLEMENTED - prefetch_size!=0 (7)"
    assert (close.class_id, close.method_id) == (60, 10)


def test_client_closes_with_channels_open(broker: BrokerAddress, control: ControlClient) -> None:
    """connection.close closes all channels, requeues unacked messages and answers close-ok."""
    queue = control.queue
    with RawClient(broker.host, broker.port).with_channel() as client:
        shared = client.declare_queue(1, auto_delete=True)
        client.send(publish_frames(1, "", shared, b"held"), publish_frames(1, "", queue, b""))
        client.call(1, commands.Basic.Get(queue=shared), commands.Basic.GetOk)
        client.expect_content(1)
        client.close()
    got = control.client.call(1, commands.Basic.Get(queue=shared, no_ack=True), commands.Basic.GetOk)
    assert got.redelivered is True
    assert control.client.expect_content(1)[1] == b"held"
    control.client.call(1, commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)
    control.client.call(1, commands.Queue.Delete(queue=shared), commands.Queue.DeleteOk)


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


def test_closes_that_cross(raw: RawClient, name: str) -> None:
    """A client that closes the channel at the same time as the broker gets close-ok, and may reopen it."""
    raw.method(1, commands.Queue.Purge(queue=name))
    raw.method(1, commands.Channel.Close(**CLOSE))
    assert raw.expect(commands.Channel.Close, 1).reply_code == 404
    raw.method(1, commands.Channel.CloseOk())
    raw.expect(commands.Channel.CloseOk, 1)
    raw.open_channel(1)


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


@pytest.mark.parametrize("how", ["close", "hang up"])
def test_consumers_unacked_messages_return_in_order(broker: BrokerAddress, control: ControlClient, how: str) -> None:
    """Unacked messages of a closed consumer are ready again in their old order, redelivered, before the rest."""
    queue = control.client.declare_queue(1)
    for number in range(10):
        control.client.send(publish_frames(1, "", queue, str(number).encode()))
        control.client.expect(commands.Basic.Ack, 1)
        control.rounds += 1
    with RawClient(broker.host, broker.port).with_channel() as client:
        client.call(1, commands.Basic.Qos(prefetch_count=6), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
        for _ in range(6):
            client.expect(commands.Basic.Deliver, 1)
            client.expect_content(1)
        client.method(1, commands.Basic.Ack(delivery_tag=3))
        client.expect(commands.Basic.Deliver, 1)  # one more for the acked one
        client.expect_content(1)
        if how == "close":
            client.close()

    def ready() -> bool:
        declare = commands.Queue.Declare(queue=queue, passive=True)
        return control.client.call(1, declare, commands.Queue.DeclareOk).message_count == 9

    wait_until(ready, "all but the acked message are ready")
    seen: list[tuple[bytes, bool]] = []
    for _ in range(9):
        got = control.client.call(1, commands.Basic.Get(queue=queue, no_ack=True), commands.Basic.GetOk)
        seen.append((control.client.expect_content(1)[1], got.redelivered))
    assert seen == [(str(number).encode(), number < 7) for number in (0, 1, 3, 4, 5, 6, 7, 8, 9)]
    control.client.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)


def test_client_that_sends_after_close(broker: BrokerAddress, control: ControlClient) -> None:
    """Methods that a client sends after its own connection.close are ignored."""
    with RawClient(broker.host, broker.port).with_channel() as client:
        client.method(0, commands.Connection.Close(**CLOSE))
        client.send(publish_frames(1, "", control.queue, b"too late"))
        client.method(1, commands.Queue.Delete(queue=control.queue))
        client.expect(commands.Connection.CloseOk, 0)
        client.expect_end()
    control.check()


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
