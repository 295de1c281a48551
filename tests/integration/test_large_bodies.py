"""Large bodies through a real broker: over TCP and TLS, on both loops, beside small ones, and to a slow client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trustme
from pamqp import commands

from broker.amqp.framing import LARGE_BYTES
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.in_process import running_broker
from tests.raw_client import RawClient, publish_frames

FRAME_MAX: Final = 131_072
PART_BYTES: Final = FRAME_MAX - 8
SIZES: Final = [204_800, 16, 0, LARGE_BYTES - 1, LARGE_BYTES, PART_BYTES, PART_BYTES + 1, 16, 1 << 20, 2 * PART_BYTES]
# The sockets buffer so little of the output that the broker has to continue where it stopped.
SMALL_BUFFER_BYTES: Final = 8192


def bodies_of(rounds: int) -> list[bytes]:
    """Return bodies of many sizes, each with its own bytes."""
    return [bytes([1 + place % 255]) * size for place, size in enumerate(SIZES * rounds)]


def pass_through(client: RawClient, rounds: int) -> None:
    """Publish bodies and consume them once all are published, and compare each byte."""
    client.open(frame_max=FRAME_MAX)
    client.open_channel(1)
    queue = client.declare_queue(1, "", exclusive=True)
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    bodies = bodies_of(rounds)
    for tag, body in enumerate(bodies, 1):
        client.send(publish_frames(1, "", queue, body, piece_bytes=PART_BYTES))
        assert client.expect(commands.Basic.Ack, 1).delivery_tag == tag
    client.call(1, commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    for tag, body in enumerate(bodies, 1):
        assert client.expect(commands.Basic.Deliver, 1).delivery_tag == tag
        assert client.expect_content(1)[1] == body
    client.close()


@asynccontextmanager
async def port_of(loop: str, folder: Path, **tls: str) -> AsyncIterator[int]:
    """Yield the port of a broker on asyncio's own loop, or of one on the loop of production."""
    if loop == "asyncio":
        async with running_broker(folder, tls={"port": 0, **tls} if tls else {}) as broker:
            yield broker.listener.tls_port if tls else broker.listener.port
        return
    environment = {f"SLOTMQ_TLS__{key.upper()}": value for key, value in ({"port": "0"} | tls).items()} if tls else {}
    process = BrokerProcess(folder, environment=environment)
    await asyncio.to_thread(process.start)
    try:
        yield await asyncio.to_thread(tls_port_of, process) if tls else process.address.port
        assert await asyncio.to_thread(process.terminate) == 0
        assert process.errors() == []
    finally:
        process.kill()


def tls_port_of(process: BrokerProcess) -> int:
    """Return the TLS port from the log, which a thread writes after the ready line."""

    def told() -> list[int]:
        return [int(event["tls_port"]) for event in process.log_events() if event["event"] == "server.started"]

    return wait_until(told, "the port in the log")[0]


@pytest.mark.parametrize("loop", ["asyncio", "served"])
@pytest.mark.parametrize("receive_buffer_bytes", [None, SMALL_BUFFER_BYTES])
async def test_large_bodies_arrive_octet_by_octet(loop: str, receive_buffer_bytes: int | None, tmp_path: Path) -> None:
    """Large bodies arrive in order and beside small ones, however little of them the client's socket buffers."""
    async with port_of(loop, tmp_path) as port:
        with RawClient("127.0.0.1", port, receive_buffer_bytes=receive_buffer_bytes) as client:
            await asyncio.to_thread(pass_through, client, 2)


@pytest.mark.parametrize("loop", ["asyncio", "served"])
async def test_large_bodies_arrive_over_tls(loop: str, tmp_path: Path) -> None:
    """The TLS records of a large body are joined to the original bytes."""
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    file = str(tmp_path / "both.pem")

    def talk(port: int) -> None:
        with RawClient("127.0.0.1", port) as client:
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            pass_through(client, 1)

    async with port_of(loop, tmp_path / "data", certfile=file, keyfile=file) as port:
        await asyncio.to_thread(talk, port)
