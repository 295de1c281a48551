"""Heartbeats in both directions, with raw clients that send nothing else.

Each conversation takes seconds of silence, so all of them take place at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from pamqp import commands

from tests.broker_process import BrokerAddress
from tests.integration.raw.conftest import ControlClient
from tests.raw_client import HEARTBEAT, RawClient, frame

T = TypeVar("T")


def test_heartbeats(broker: BrokerAddress, control: ControlClient) -> None:
    """The broker sends heartbeats, keeps a client that gives signs of life, and drops a silent one and its queues."""
    conversations: list[Callable[[RawClient], None]] = [
        broker_sends_heartbeats,
        no_heartbeat_by_agreement,
        partial(sign_of_life_keeps_the_client, sign="heartbeat"),
        partial(sign_of_life_keeps_the_client, sign="method"),
    ]
    with ThreadPoolExecutor(len(conversations) + 1) as pool:
        held = [pool.submit(converse, broker, one) for one in conversations]
        dropped = pool.submit(converse, broker, silent_client_is_dropped)
        for each in held:
            each.result()
    queue = dropped.result()
    control.client.method(1, commands.Queue.Declare(queue=queue, passive=True))
    close = control.client.expect_channel_close(1, 404)
    assert close.reply_text == f"NOT_FOUND - no queue '{queue}' in vhost '/'"
    control.client.open_channel(1)
    control.client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    control.rounds = 0


def converse(broker: BrokerAddress, conversation: Callable[[RawClient], T]) -> T:
    """Hold a conversation on a connection of its own."""
    with RawClient(broker.host, broker.port) as client:
        return conversation(client)


def broker_sends_heartbeats(client: RawClient) -> None:
    """With a heartbeat of 2 s the broker sends heartbeats while the connection is idle."""
    client.open(heartbeat=2)
    for _ in range(2):
        received = client.receive()
        assert (received.type, received.channel) == (HEARTBEAT, 0)
        client.send(frame(HEARTBEAT, 0, b""))


def silent_client_is_dropped(client: RawClient) -> str:
    """Go silent after agreeing to a heartbeat of 1 s, lose the connection, and return the exclusive queue's name."""
    client.open(heartbeat=1)
    client.open_channel(1)
    queue = client.declare_queue(1, exclusive=True)
    client.expect_end()
    return queue


def sign_of_life_keeps_the_client(client: RawClient, *, sign: str) -> None:
    """Heartbeats, and any other traffic, keep a connection with a heartbeat of 1 s open."""
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


def no_heartbeat_by_agreement(client: RawClient) -> None:
    """With a heartbeat of 0 the broker sends none and expects none."""
    client.open(heartbeat=0)
    assert not client.readable(2.5)
    client.open_channel(1)
