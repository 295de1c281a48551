"""Raw clients in threads, for a broker in the test's event loop; if the broker fails, their work ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pamqp import commands

from broker.server import BrokerServer
from broker.settings import Settings
from broker.store.files import Files
from tests.deadline import wait_until_async
from tests.in_process import RESERVE_BYTES, WITHOUT_HTTP
from tests.raw_client import RawClient, publish_frames

Value = TypeVar("Value")
Sections: TypeAlias = Mapping[str, Mapping[str, Any]]

PUBLISHING = 100
"""The channel of `publish`, which opens and closes it each time."""


@asynccontextmanager
async def mortal_broker(
    folder: Path, sections: Sections | None = None, *, files: Files | None = None, crash: bool = False
) -> AsyncIterator[BrokerServer]:
    """Yield a broker and stop it cleanly; drop it instead if it failed or `crash` is set."""
    given: dict[str, Any] = {**(sections or {})}
    server = {"port": 0, "data_dir": folder, **given.pop("server", {})}
    store = {"reserve_bytes": RESERVE_BYTES, **given.pop("store", {})}
    broker = BrokerServer(Settings(**{**WITHOUT_HTTP, **given, "server": server, "store": store}), files)
    await broker.start()
    try:
        yield broker
    except BaseException:
        await drop(broker)
        raise
    if crash or broker._failure is not None:
        await drop(broker)
    else:
        await broker.stop()


async def drop(broker: BrokerServer) -> None:
    """End a broker as if its process died: it writes and sends nothing more."""
    broker._fail(RuntimeError("dropped by the test"))
    broker.listener.refuse_new()
    broker._timers.close()
    await broker.entrance.control.close()
    for transport in list(broker.listener.transports):
        transport.abort()
    await wait_until_async(lambda: not broker.listener.transports, "the end of every connection", 5)
    for engine in broker.engines.values():
        if engine._checkpoint is not None:
            engine._checkpoint.cancel()
        engine.close()
    broker.data.folder.close()


async def talk(broker: BrokerServer, work: Callable[..., Value], *arguments: Any) -> Value:
    """Run a client's work in a thread and return its result. Raises: AssertionError if the broker fails."""
    talking = asyncio.create_task(asyncio.to_thread(work, *arguments))
    failed = asyncio.create_task(broker.wait_failed())
    await asyncio.wait({talking, failed}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        for transport in list(broker.listener.transports):
            transport.abort()
        await asyncio.wait({talking})
        talking.exception()
        raise AssertionError(f"the broker failed: {failed.result()!r}") from failed.result()
    failed.cancel()
    return talking.result()


def connect(broker: BrokerServer, **options: Any) -> RawClient:
    """Return a client with channel 1 open."""
    receive_buffer_bytes = options.pop("receive_buffer_bytes", None)
    client = RawClient("127.0.0.1", broker.listener.port, receive_buffer_bytes=receive_buffer_bytes)
    client.open(**options)
    client.open_channel(1)
    return client


def declare(client: RawClient, *names: str, durable: bool = False, fanout: bool = False) -> None:
    """Declare queues, optionally bound to amq.fanout."""
    for name in names:
        client.call(1, commands.Queue.Declare(queue=name, durable=durable), commands.Queue.DeclareOk)
        if fanout:
            client.call(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"), commands.Queue.BindOk)


def publish(client: RawClient, key: str, bodies: Sequence[bytes], *, exchange: str = "", mode: int = 2) -> None:
    """Publish messages and wait for all confirms."""
    client.open_channel(PUBLISHING)
    client.call(PUBLISHING, commands.Confirm.Select(), commands.Confirm.SelectOk)
    properties = commands.Basic.Properties(delivery_mode=mode)
    client.send(*(publish_frames(PUBLISHING, exchange, key, body, properties=properties) for body in bodies))
    while bodies and client.expect(commands.Basic.Ack, PUBLISHING).delivery_tag < len(bodies):
        pass
    close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
    client.call(PUBLISHING, close, commands.Channel.CloseOk)


def receive(client: RawClient, count: int) -> list[tuple[commands.Basic.Deliver, bytes]]:
    """Return the next deliveries with their bodies."""
    return [(client.expect(commands.Basic.Deliver, 1), client.expect_content(1)[1]) for _ in range(count)]


def consume(client: RawClient, queue: str, count: int) -> list[bytes]:
    """Consume this many messages without acks, and return their bodies."""
    client.call(1, commands.Basic.Consume(queue=queue, consumer_tag=queue, no_ack=True), commands.Basic.ConsumeOk)
    bodies = [body for _, body in receive(client, count)]
    client.call(1, commands.Basic.Cancel(consumer_tag=queue), commands.Basic.CancelOk)
    return bodies


def get(client: RawClient, queue: str, *, no_ack: bool = True) -> tuple[bytes, bool]:
    """Get one message; return its body and redelivered flag."""
    got = client.call(1, commands.Basic.Get(queue=queue, no_ack=no_ack), commands.Basic.GetOk)
    return client.expect_content(1)[1], got.redelivered


def page_out(broker: BrokerServer, name: str, vhost: str = "/") -> None:
    """Page out all messages of a queue, as the pager does when memory is short."""
    engine = broker.engines[vhost]
    for stream in engine.vhost.queues[name].all_levels:
        stream.manager.seal()
        for slot in list(stream.manager.slots.values()):
            if slot.length and slot.contents is not None:
                assert engine.pager.log_entries(stream, slot)
                slot.contents = None


def numbered(count: int, size: int = 10_000) -> list[bytes]:
    """Return bodies that contain their number."""
    return [b"%06d" % number + bytes(size - 6) for number in range(count)]
