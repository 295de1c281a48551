"""A checkpoint that waits for the disk while other work continues."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from threading import Semaphore

from pamqp import commands

from broker.store.files import File, Files
from tests.deadline import wait_until_async
from tests.raw_client import publish_frames
from tests.raw_talk import connect, declare, get, mortal_broker, talk

PERSISTENT = commands.Basic.Properties(delivery_mode=2)


class GatedFiles(Files):
    """Files that hold back writes of the log from a moment on, until a test releases them."""

    gate: Semaphore | None = None
    waiting = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a file; a file of the log is gated."""
        file = super().open(path, write=write, create=create)
        return GatedFile(file, self) if path.parent.name == "log" else file


class GatedFile(File):
    """A file of the log."""

    def __init__(self, file: File, files: GatedFiles) -> None:
        super().__init__(file.path, file._descriptor)
        self._files = files

    def write_at(self, offset: int, block: bytes) -> None:
        """Write once the gate is open."""
        gate = self._files.gate
        if gate is not None:
            self._files.waiting += 1
            gate.acquire()
        super().write_at(offset, block)


async def test_what_a_checkpoint_found_unwritten_stays_in_memory(tmp_path: Path) -> None:
    """A slot whose entries a checkpoint wrote before the log is not paged out until its records are written."""
    files = GatedFiles()
    with ExitStack() as clients:
        async with mortal_broker(tmp_path, files=files) as broker:
            engine = broker.engines["/"]
            client = clients.enter_context(await talk(broker, connect, broker))
            await talk(broker, lambda: declare(client, "d", durable=True))
            gate = files.gate = Semaphore(0)

            async def send(body: bytes, waiting: int) -> None:
                before = engine.store.log.position
                client.send(publish_frames(1, "", "d", body, properties=PERSISTENT))

                async def arrived() -> bool:
                    return engine.store.log.position > before and files.waiting >= waiting

                await wait_until_async(arrived, "the message")

            try:
                await send(b"first", 1)  # its batch waits for the disk
                checkpoint = asyncio.create_task(engine.checkpointer.take())
                await send(b"second", 1)
                gate.release()  # the batch that the checkpoint waits for starts, and waits for the disk

                async def second() -> bool:
                    return files.waiting >= 2

                await wait_until_async(second, "the second batch")
                await send(b"third", 2)
                gate.release()  # the checkpoint continues, and finds a message that is not written

                async def third() -> bool:
                    return files.waiting >= 3

                await wait_until_async(third, "the third batch")
                engine.pager.budget_bytes = 0
                engine.pager.tick()
                assert engine.pager.pressed
                engine.pager.turn()
                bodies = [(await talk(broker, get, client, "d"))[0] for _ in range(3)]
            finally:
                files.gate = None
                gate.release(10)
            await checkpoint
    assert bodies == [b"first", b"second", b"third"]
