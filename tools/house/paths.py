"""The four paths, each traced once with a real client of an interpreted broker in this process."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import structlog
from pamqp import commands

import broker
from broker.compiled import is_compiled
from broker.delivery.committer import BatchWriter
from broker.server import BrokerServer
from broker.settings import Settings
from tools.house.client import Client, ask
from tools.house.steady_loop import SteadyLoop
from tools.house.tracer import Step, Tracer

ROOT: Final = Path(broker.__file__).parents[1]
NOW_S: Final = 1_700_000_000.0
WARM: Final = 3
"""Messages to send before the traced one: caches store a route at its second use."""
QUIET_TURNS: Final = 50
SET_POLICY: Final = {"verb": "set_policy", "name": "traced", "pattern": "^traced$", "apply_to": "queues"}


async def publish(folder: Path, key: str = "a.b") -> list[Step]:
    """Publish a persistent message to a durable queue by a cached route of a topic exchange, until its confirm."""
    async with running_broker(folder) as server, client_of(server, confirms=True) as client:
        await declare(client)
        for _ in range(WARM):
            client.publish("traced", "a.b", b"hello")
            await client.expect(commands.Basic.Ack)
            await quiet()
        with Tracer(ROOT) as tracer:
            client.publish("traced", key, b"hello")
            await client.expect(commands.Basic.Ack)
    return tracer.steps


async def publish_new_key(folder: Path) -> list[Step]:
    """Publish in the same way, with a routing key that is not cached."""
    return await publish(folder, "a.c")


async def deliver(folder: Path) -> list[Step]:
    """Deliver a message to a waiting consumer of another connection, until its ack, which frees a full slot.

    The path begins with the loop turn after the publish.
    """
    async with (
        running_broker(folder, window_messages=1) as server,
        client_of(server) as publisher,
        client_of(server) as consumer,
    ):
        await declare(publisher)
        consumer.send(1, commands.Basic.Consume(queue="traced"))
        await consumer.expect(commands.Basic.ConsumeOk)
        for _ in range(WARM + 1):
            with Tracer(ROOT) as tracer:
                publisher.publish("traced", "a.b", b"hello")
                consumer.send(1, commands.Basic.Ack(await consumer.expect_delivery()))
                await quiet()
    begins = [step.function for step in tracer.steps].index("Turn.run")
    return tracer.steps[begins:]


async def start(folder: Path) -> list[Step]:
    """Start on a data folder with a durable queue and one message in it, until clients may connect."""
    async with running_broker(folder) as server, client_of(server, confirms=True) as client:
        await declare(client)
        client.publish("traced", "a.b", b"hello")
        await client.expect(commands.Basic.Ack)
    server = _broker(folder)
    with Tracer(ROOT) as tracer:
        await server.start()
    await server.stop()
    return tracer.steps


async def policy(folder: Path) -> list[Step]:
    """Change a policy of one queue through the control socket, until it applies to the queue."""
    async with running_broker(folder, control_socket=True) as server, client_of(server) as client:
        await declare(client)
        await ask(folder, [{**SET_POLICY, "definition": {"max-length": length}} for length in range(1, WARM)])
        await quiet()
        with Tracer(ROOT) as tracer:
            await ask(folder, [{**SET_POLICY, "definition": {"max-length": 100}}])
            await quiet()
    return tracer.steps


PATHS: Final[dict[str, Callable[[Path], Coroutine[Any, Any, list[Step]]]]] = {
    "publish": publish,
    "publish-new-key": publish_new_key,
    "deliver": deliver,
    "start": start,
    "policy": policy,
}


def walk(name: str) -> list[Step]:
    """Return every call of one path."""
    assert not is_compiled(), "a path is traced in the interpreted broker"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with (
        patch.object(BatchWriter, "start", BatchWriter.write),
        tempfile.TemporaryDirectory(prefix="slotmq-path-") as folder,
        asyncio.Runner(loop_factory=SteadyLoop) as runner,
    ):
        return runner.run(PATHS[name](Path(folder)))


def _broker(folder: Path, *, control_socket: bool = False, window_messages: int = 1000) -> BrokerServer:
    settings = Settings(
        server={"port": 0, "data_dir": folder, "control_socket": control_socket, "drain_timeout_ms": 0},
        http={"port": 0},
        metrics={"port": 0},
        store={"reserve_bytes": 0, "disk_free_min_bytes": 0},
        memory={"alarm_ratio": 1.0},
        slots={"window_messages": window_messages},
    )
    return BrokerServer(settings, clock=lambda: NOW_S)


@asynccontextmanager
async def running_broker(folder: Path, **options: Any) -> AsyncIterator[BrokerServer]:
    """Yield a broker with its data in a folder, and stop it cleanly."""
    server = _broker(folder, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client_of(server: BrokerServer, *, confirms: bool = False) -> AsyncIterator[Client]:
    """Yield a client of a broker."""
    client = await Client.connect(server.listener.port, confirms=confirms)
    try:
        yield client
    finally:
        await client.close()


async def declare(client: Client) -> None:
    """Declare a durable topic exchange and a durable queue, and bind the queue to the exchange."""
    await client.call(
        commands.Exchange.Declare(exchange="traced", exchange_type="topic", durable=True), commands.Exchange.DeclareOk
    )
    await client.call(commands.Queue.Declare(queue="traced", durable=True), commands.Queue.DeclareOk)
    await client.call(commands.Queue.Bind(queue="traced", exchange="traced", routing_key="a.#"), commands.Queue.BindOk)


async def quiet() -> None:
    """Wait until the broker is idle: every scheduled callback has run."""
    for _ in range(QUIET_TURNS):
        await asyncio.sleep(0)
