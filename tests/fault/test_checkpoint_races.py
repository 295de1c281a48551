"""A checkpoint that waits for the disk while other work continues."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from pamqp import commands

from tests.deadline import wait_until_async
from tests.gated_files import GatedFiles
from tests.raw_client import publish_frames
from tests.raw_talk import connect, declare, get, mortal_broker, talk

PERSISTENT = commands.Basic.Properties(delivery_mode=2)


async def test_what_a_checkpoint_found_unwritten_stays_in_memory(tmp_path: Path) -> None:
    """A slot whose entries a checkpoint wrote before the log is not paged out until its records are written."""
    files = GatedFiles("write")
    with ExitStack() as clients:
        async with mortal_broker(tmp_path, files=files) as broker:
            engine = broker.engines["/"]
            client = clients.enter_context(await talk(broker, connect, broker))
            await talk(broker, lambda: declare(client, "d", durable=True))
            files.gate.clear()
            files.stepwise = True
            before = files.arrived

            async def send(body: bytes, waiting: int) -> None:
                position = engine.store.log.position
                client.send(publish_frames(1, "", "d", body, properties=PERSISTENT))
                await wait_until_async(
                    lambda: engine.store.log.position > position and files.arrived - before >= waiting, "the message"
                )

            try:
                await send(b"first", 1)  # its batch waits for the disk
                checkpoint = asyncio.create_task(engine.checkpointer.take())
                await send(b"second", 1)
                files.gate.set()  # the batch that the checkpoint waits for starts, and waits for the disk
                await wait_until_async(lambda: files.arrived - before >= 2, "the second batch")
                await send(b"third", 2)
                files.gate.set()  # the checkpoint continues, and finds a message that is not written
                await wait_until_async(lambda: files.arrived - before >= 3, "the third batch")
                engine.pager.budget_bytes = 0
                engine.pager.tick()
                assert engine.pager.pressed
                engine.pager.turn()
                bodies = [(await talk(broker, get, client, "d"))[0] for _ in range(3)]
            finally:
                files.stepwise = False
                files.gate.set()
            await checkpoint
    assert bodies == [b"first", b"second", b"third"]
