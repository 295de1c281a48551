"""Heartbeats in both directions, with a raw client that sends nothing else."""

from __future__ import annotations

import time

import pytest
from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import HEARTBEAT, RawClient, frame


def test_broker_sends_heartbeats(broker: BrokerAddress) -> None:
    """With a heartbeat of 2 s the broker sends heartbeats while the connection is idle."""
    with RawClient(broker.host, broker.port) as client:
        client.open(heartbeat=2)
        for _ in range(2):
            received = client.receive()
            assert (received.type, received.channel) == (HEARTBEAT, 0)
            client.send(frame(HEARTBEAT, 0, b""))


def test_silent_client_is_dropped(broker: BrokerAddress, control: ControlClient) -> None:
    """A client that agreed to a heartbeat of 1 s and goes silent loses its connection and its exclusive queues."""
    with RawClient(broker.host, broker.port) as client:
        client.open(heartbeat=1)
        client.open_channel(1)
        queue = client.declare_queue(1, exclusive=True)
        client.expect_end()
    control.client.method(1, commands.Queue.Declare(queue=queue, passive=True))
    close = control.client.expect_channel_close(1, 404)
    assert close.reply_text == f"NOT_FOUND - no queue '{queue}' in vhost '/'"
    control.client.open_channel(1)
    control.client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    control.rounds = 0


@pytest.mark.parametrize("sign", ["heartbeat", "method"])
def test_client_that_gives_signs_of_life_is_kept(broker: BrokerAddress, sign: str) -> None:
    """Heartbeats, and any other traffic, keep a connection with a heartbeat of 1 s open."""
    with RawClient(broker.host, broker.port) as client:
        client.open(heartbeat=1)
        client.open_channel(1)
        client.socket.settimeout(0.4)
        end = time.monotonic() + 3.5  # longer than the two intervals of silence that end a connection
        while time.monotonic() < end:
            try:
                assert client.receive().type == HEARTBEAT or sign == "method"
            except TimeoutError:
                pass
            if sign == "heartbeat":
                client.send(frame(HEARTBEAT, 0, b""))
            else:
                client.method(1, commands.Basic.Qos(prefetch_count=1))
        client.socket.settimeout(20)
        client.method(2, commands.Channel.Open())
        client.skip_to(commands.Channel.OpenOk, 2)


def test_no_heartbeat_by_agreement(broker: BrokerAddress) -> None:
    """With a heartbeat of 0 the broker sends none and expects none."""
    with RawClient(broker.host, broker.port) as client:
        client.open(heartbeat=0)
        assert not client.readable(2.5)
        client.open_channel(1)
