"""Publishers that fill the memory of unwritten records are paused while the disk is slow; others are not."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from pamqp import commands

from broker.net.publisher_throttle import STORE_BACKLOG_MAX_BYTES, Stop
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.gated_files import GatedFiles
from tests.in_process import queue_of
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import connect, declare, mortal_broker, talk

PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)
BODY: Final = bytes(64 << 10)
FLOOD_MESSAGES: Final = 600
POLITE_MESSAGES: Final = 20


def flood(client: RawClient, queue: str) -> None:
    """Publish more than may wait to be written."""
    for _ in range(FLOOD_MESSAGES):
        client.send(publish_frames(1, "", queue, BODY, properties=PERSISTENT, piece_bytes=100_000))


def converse(client: RawClient, queue: str, properties: commands.Basic.Properties | None) -> int:
    """Publish messages one after the other, and return how many were delivered."""
    client.call(1, commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    for _ in range(POLITE_MESSAGES):
        client.send(publish_frames(1, "", queue, b"polite", properties=properties))
        client.expect(commands.Basic.Deliver, 1)
        assert client.expect_content(1)[1] == b"polite"
    return POLITE_MESSAGES


def paused(broker: BrokerServer) -> int:
    """Return how many publishers are paused for the store."""
    return sum(bool(transport._stops & Stop.STORE) for transport in broker.listener.transports)


@pytest.mark.parametrize("greedy", [1, 3])
async def test_a_slow_disk_pauses_those_who_fill_the_backlog(tmp_path: Path, greedy: int) -> None:
    """While nothing is written, polite clients' messages are delivered, persistent ones too, and memory is bounded."""
    files = GatedFiles()
    async with mortal_broker(tmp_path, files=files) as broker:
        with ExitStack() as stack:
            clients = [stack.enter_context(await talk(broker, connect, broker)) for _ in range(greedy + 2)]
            *flooding, polite, transient = clients
            names = [f"flood {number}" for number in range(greedy)]
            await talk(broker, lambda: declare(polite, *names, "polite", durable=True))
            await talk(broker, lambda: declare(transient, "transient"))
            files.gate.clear()
            await talk(broker, lambda: transient.send(publish_frames(1, "", names[0], b"", properties=PERSISTENT)))
            committer = broker.engines["/"].committer
            await wait_until_async(lambda: committer.busy, "a batch waits for the disk")
            floods = [
                asyncio.create_task(asyncio.to_thread(flood, client, name))
                for client, name in zip(flooding, names, strict=True)
            ]
            try:
                await wait_until_async(lambda: paused(broker) == greedy, "the greedy publishers are paused")
                pending_bytes = broker.data.vhosts.pending_bytes()
                assert STORE_BACKLOG_MAX_BYTES // 2 < pending_bytes < STORE_BACKLOG_MAX_BYTES
                assert await talk(broker, converse, polite, "polite", PERSISTENT) == POLITE_MESSAGES
                assert await talk(broker, converse, transient, "transient", None) == POLITE_MESSAGES
                assert paused(broker) == greedy
                assert broker.data.vhosts.pending_bytes() - pending_bytes < len(BODY)
            finally:
                files.gate.set()
            await asyncio.gather(*floods)
            await wait_until_async(
                lambda: all(queue_of(broker, name).ready >= FLOOD_MESSAGES for name in names),
                "the flood is taken once the disk goes on",
            )
