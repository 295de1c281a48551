"""Closed connections free their objects, on the loop that ships: the collector would stop the broker to find them."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from pamqp import commands

from tests.deadline import wait_until
from tests.in_process import running_broker
from tests.raw_client import RawClient, publish_frames

OF_A_CONNECTION = {
    "Channel",
    "Connection",
    "Consumer",
    "FrameCutter",
    "OutputWindow",
    "Publisher",
    "SessionOfChannel",
    "SessionOfConnection",
    "Transport",
    "TxSession",
}
CLIENTS = 3


def call(client: RawClient, channel: int, method: Any, answer: type) -> None:
    """Send a method, and read up to its answer."""
    client.method(channel, method)
    while not isinstance(client.next().value, answer):
        pass


def close(client: RawClient) -> None:
    """Close in order."""
    call(client, 0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)


def go_away(client: RawClient) -> None:
    """Close the socket amid a message."""
    client.send(publish_frames(1, "", "q", b"whole") + publish_frames(1, "", "q", b"cut")[:-3])


def fail_a_channel(client: RawClient) -> None:
    """Let a channel fail, and another one close."""
    call(client, 1, commands.Queue.Declare(queue="missing", passive=True), commands.Channel.Close)
    client.method(1, commands.Channel.CloseOk())
    call(client, 2, commands.Channel.Open(), commands.Channel.OpenOk)
    call(client, 2, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    close(client)


def fail_the_connection(client: RawClient) -> None:
    """Send what ends the connection, and answer its close."""
    call(client, 1, commands.Channel.Open(), commands.Connection.Close)
    client.method(0, commands.Connection.CloseOk())


def live(client: RawClient) -> None:
    """Publish, confirm, consume and ack; leave a delivery unacknowledged and a consumer of an own queue; use tx."""
    client.open()
    call(client, 1, commands.Channel.Open(), commands.Channel.OpenOk)
    call(client, 1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    call(client, 1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    call(client, 1, commands.Basic.Qos(prefetch_count=10), commands.Basic.QosOk)
    call(client, 1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
    client.send(publish_frames(1, "", "q", b"one"), publish_frames(1, "", "q", b"two"))
    call(client, 1, commands.Basic.Qos(prefetch_count=20), commands.Basic.QosOk)  # both are delivered before it
    client.method(1, commands.Basic.Ack(delivery_tag=1))
    call(client, 3, commands.Channel.Open(), commands.Channel.OpenOk)
    call(client, 3, commands.Queue.Declare(queue="own", exclusive=True), commands.Queue.DeclareOk)
    call(client, 3, commands.Basic.Consume(queue="own"), commands.Basic.ConsumeOk)
    call(client, 3, commands.Tx.Select(), commands.Tx.SelectOk)
    client.send(publish_frames(3, "", "own", b"one"))
    call(client, 3, commands.Tx.Commit(), commands.Tx.CommitOk)


def left() -> Counter[str]:
    """Return how many objects of connections there are, those that only the collector would free among them."""
    kinds = [type(one) for one in gc.get_objects()]
    return Counter(kind.__name__ for kind in kinds if kind.__name__ in OF_A_CONNECTION and of_the_broker(kind))


def of_the_broker(kind: type) -> bool:
    """Return whether a class is one of the broker's."""
    return str(kind.__module__).startswith("broker.")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("end", [close, go_away, fail_a_channel, fail_the_connection])
def test_nothing_waits_for_the_collector(end: Callable[[RawClient], None], tls: bool, tmp_path: Path) -> None:
    """Connections of each end leave no object, though collections are off."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "cert.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def talk(port: int) -> None:
        with RawClient("127.0.0.1", port) as client:
            if tls:
                client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            live(client)
            end(client)

    async def run() -> None:
        certificate = {"certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
        async with running_broker(tmp_path / "data", tls={"port": 0, **certificate}) as broker:
            listener = broker.listener
            before = left()
            for _ in range(CLIENTS):
                await asyncio.to_thread(talk, listener.tls_port if tls else listener.port)
            await asyncio.to_thread(wait_until, lambda: left() == before, "nothing is left")

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    finally:
        gc.enable()
