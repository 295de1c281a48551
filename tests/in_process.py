"""A broker in the test's event loop, for tests that inspect it or count its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika

from broker.cli.control_client import ask
from broker.core.queue.queue import Queue
from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.files import Files
from broker.testing import Broker as Timed
from broker.testing import VirtualClock

RESERVE_BYTES = 1 << 20  # in each test's folder; pytest keeps the last folders
WITHOUT_HTTP: Any = {"http": {"enabled": False}, "metrics": {"enabled": False}}
"""Sections of the settings that turn HTTP off."""


@asynccontextmanager
async def running_broker(
    folder: Path, files: Files | None = None, **sections: dict[str, Any]
) -> AsyncIterator[BrokerServer]:
    """Yield a broker on a free port with its data in `folder`, on `files` or real ones, and stop it cleanly."""
    server = {"port": 0, "data_dir": folder, **sections.pop("server", {})}
    store = {"reserve_bytes": RESERVE_BYTES, **sections.pop("store", {})}
    broker = BrokerServer(Settings(**{**WITHOUT_HTTP, **sections, "server": server, "store": store}), files)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def timed_broker(folder: Path, clock: VirtualClock | None = None, **sections: dict[str, Any]) -> Timed:
    """Return a broker context with a clock that the test advances, with real files in `folder`."""
    return Timed(server={"data_dir": folder, **sections.pop("server", {})}, files=Files(), clock=clock, **sections)


@asynccontextmanager
async def client_of(broker: BrokerServer) -> AsyncIterator[Any]:
    """Yield a channel of a new aio-pika connection, with confirms."""
    connection: Any = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.listener.port}/")
    try:
        yield await connection.channel()
    finally:
        await connection.close()


def queue_of(broker: BrokerServer, name: str) -> Queue:
    """Return the broker's queue object."""
    return broker.engines["/"].vhost.queues[name]


async def told(broker: BrokerServer, verb: str, **arguments: Any) -> Any:
    """Return the broker's answer over its control socket."""
    return await asyncio.to_thread(ask, broker.settings.server.data_dir, verb, **arguments)


def end_of(connection: Any) -> asyncio.Future[Any]:
    """Return a future of the error that ends an aio-pika connection."""
    ended = asyncio.get_running_loop().create_future()

    def closed(_connection: Any, error: Any) -> None:
        if not ended.done():
            ended.set_result(error)

    connection.close_callbacks.add(closed)
    return ended


async def log_in(broker: BrokerServer, user: str, password: str) -> None:
    """Connect over AMQP and disconnect."""
    connection: Any = await aio_pika.connect(f"amqp://{user}:{password}@127.0.0.1:{broker.listener.port}/")
    await connection.close()
