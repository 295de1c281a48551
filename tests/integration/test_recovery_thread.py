"""Recovery runs in a thread: the loop works meanwhile, and the start can be cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.data_folder import folder_name
from broker.store.files import Files
from tests.deadline import DEADLINE_S
from tests.gated_files import GatedFiles, of_log
from tests.in_process import RESERVE_BYTES, running_broker

SECOND = "z"


def gated_files() -> GatedFiles:
    """Return files whose log of the second vhost cannot be opened before the gate is."""
    files = GatedFiles("open", lambda path: of_log(path) and path.parent.parent.name == folder_name(SECOND))
    files.gate.clear()
    return files


def start(folder: Path, files: Files) -> tuple[BrokerServer, asyncio.Task[None]]:
    """Return a broker and the task that starts it."""
    server: dict[str, Any] = {"port": 0, "data_dir": folder}
    broker = BrokerServer(Settings(server=server, store={"reserve_bytes": RESERVE_BYTES}), files)
    return broker, asyncio.create_task(broker.start())


async def fill(folder: Path) -> None:
    """Leave one persistent message in a queue of each of two vhosts."""
    async with running_broker(folder) as broker:
        await broker.administration.change(lambda draft: draft.add_vhost(SECOND, {}))
        await broker.administration.change(lambda draft: draft.permissions.set("guest", SECOND, ".*", ".*", ".*"))
        for vhost in ("%2F", SECOND):
            connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/{vhost}")
            async with connection:
                channel = await connection.channel()
                queue = await channel.declare_queue("kept", durable=True)
                message = aio_pika.Message(b"here", delivery_mode=2)
                await channel.default_exchange.publish(message, routing_key=queue.name)


async def test_the_loop_works_during_a_recovery(tmp_path: Path) -> None:
    """The loop can tell how far the recovery is, and no vhost begins before all are recovered."""
    await fill(tmp_path)
    files = gated_files()
    broker, starting = start(tmp_path, files)
    assert await asyncio.to_thread(files.reached.wait, DEADLINE_S)
    progress = broker.shared.recovery.facts()
    assert (progress["vhost"], progress["vhost_number"], progress["vhosts"]) == (SECOND, 2, 2)
    assert not broker.vhosts, "messages of the first vhost could expire, and policies are not known yet"
    files.gate.set()
    await starting
    assert broker.shared.recovery.facts() == {}
    assert set(broker.vhosts) == {"/", SECOND}
    await broker.stop()


async def test_a_start_that_is_cancelled_waits_for_its_thread(tmp_path: Path) -> None:
    """The folder stays locked until the thread has ended, and the next start finds all as it was, and clean."""
    await fill(tmp_path)
    files = gated_files()
    _, starting = start(tmp_path, files)
    assert await asyncio.to_thread(files.reached.wait, DEADLINE_S)
    starting.cancel()
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.sleep(0)
    assert not starting.done(), "the thread still works on the files"
    files.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with running_broker(tmp_path) as broker:
        for vhost in ("%2F", SECOND):
            connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/{vhost}")
            async with connection:
                channel = await connection.channel()
                message = await (await channel.get_queue("kept")).get()
                assert message is not None
                assert (message.body, message.redelivered) == (b"here", False)
