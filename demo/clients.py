"""The client processes of a run, each with one connection: publishers use pika, consumers pika or aio-pika."""

import asyncio
import ctypes
import inspect
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import aio_pika
import pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import ChannelInvalidStateError
from pika.adapters.blocking_connection import BlockingChannel

from demo.ledger import SPAWN, Failed, Inbox, Ledger, Outbox
from demo.options import Options
from demo.plan import EXCHANGE

PUBLISHERS = 2
WINDOW = 2_000  # unconfirmed messages

# The errors of an operation in flight when the connection is lost; aio-pika itself cancels some.
LOST = (aio_pika.exceptions.AMQPConnectionError, ChannelInvalidStateError, ConnectionError, asyncio.CancelledError)


def _parameters(url: str, name: str) -> pika.URLParameters:
    parameters = pika.URLParameters(url)
    parameters.client_properties = {"connection_name": name}
    return parameters


@contextmanager
def channel_to(url: str, name: str = "demo topology") -> Iterator[BlockingChannel]:
    """Yield a channel of a new connection."""
    with pika.BlockingConnection(_parameters(url, name)) as connection:
        yield connection.channel()


def publisher(url: str, outbox: Outbox) -> object:
    """Publish until every flight is confirmed; return None, or the error that ended the connection."""
    window = outbox.window(WINDOW)
    errors: list[object] = []

    def opened(channel: Any) -> None:
        def publish(_: object = None) -> None:
            while len(outbox) < window and (taken := outbox.take()) is not None:
                _, (row, key, body) = taken
                properties = pika.BasicProperties("application/json", delivery_mode=2, message_id=str(row))
                channel.basic_publish(EXCHANGE, key, body, properties, mandatory=True)
            if not outbox:
                channel.connection.close()

        def answered(frame: Any) -> None:
            is_ack = isinstance(frame.method, pika.spec.Basic.Ack)
            settle = outbox.confirmed if is_ack else outbox.refused
            settle(frame.method.delivery_tag, frame.method.multiple)
            if len(outbox) <= window // 2:  # filling a half-empty window combines many small writes into long ones
                publish()

        outbox.connected()
        channel.add_on_return_callback(lambda *_: outbox.returned())
        channel.add_on_close_callback(channel_closed)
        channel.confirm_delivery(answered, callback=publish)

    def channel_closed(channel: Any, reason: object) -> None:
        errors.append(reason)
        if channel.connection.is_open:
            channel.connection.close()

    def closed(connection: Any, reason: object) -> None:
        errors.append(reason)
        connection.ioloop.stop()

    pika.SelectConnection(
        _parameters(url, "demo publisher"),
        on_open_callback=lambda connection: connection.channel(on_open_callback=opened),
        on_open_error_callback=closed,
        on_close_callback=closed,
    ).ioloop.start()
    return None if outbox.finished else errors[0]


def pika_consumer(url: str, inbox: Inbox) -> object:
    """Consume until the run is over; return None, or the error that ended the connection."""

    def delivered(index: int, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        tag, redelivered, key = method.delivery_tag, method.redelivered, method.routing_key
        if inbox.record(index, tag, redelivered, properties.message_id, key, body):
            ack(channel)

    def ack(channel: BlockingChannel) -> None:
        channel.basic_ack(inbox.last_tag, multiple=True)
        inbox.unacked = 0

    try:
        with channel_to(url, "demo consumer (pika)") as channel:
            channel.basic_qos(prefetch_count=inbox.prefetch)
            inbox.connected()
            for index, name in inbox.queues:
                channel.basic_consume(name, partial(delivered, index))
            while not inbox.ledger.stopping:
                before = inbox.last_tag
                channel.connection.process_data_events(time_limit=0.1)
                if inbox.unacked and inbox.last_tag == before:  # idle: ack the pending deliveries now
                    ack(channel)
    except (pika.exceptions.AMQPConnectionError, pika.exceptions.ChannelWrongStateError) as error:
        return error
    return None


async def connect(url: str, name: str) -> AbstractConnection:
    """Return a connection that the broker shows under this name."""
    properties: Any = {"connection_name": name}
    return await aio_pika.connect(url, client_properties=properties)


async def aio_pika_consumer(url: str, inbox: Inbox) -> object:
    """Consume until the run is over; return None, or the error that ended the connection."""
    newest: AbstractIncomingMessage | None = None

    async def delivered(index: int, message: AbstractIncomingMessage) -> None:
        nonlocal newest
        newest = message
        tag, key = message.delivery_tag or 0, message.routing_key or ""
        if inbox.record(index, tag, bool(message.redelivered), message.message_id, key, message.body):
            await ack()

    async def ack() -> None:
        if newest is not None and inbox.unacked:
            inbox.unacked = 0  # before the await: later deliveries belong to the next ack
            with suppress(*LOST):  # a lost connection is detected below
                await newest.ack(multiple=True)

    try:
        async with await connect(url, "demo consumer (aio-pika)") as connection:
            channel = await connection.channel()
            ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            channel.close_callbacks.add(lambda _, error: None if ended.done() else ended.set_result(error))
            await channel.set_qos(prefetch_count=inbox.prefetch)
            inbox.connected()
            for index, name in inbox.queues:
                queue = await channel.get_queue(name, ensure=False)
                await queue.consume(partial(delivered, index))
            while not inbox.ledger.stopping and not ended.done():
                await asyncio.wait([ended], timeout=0.1)
                await ack()
            return (ended.result() or ConnectionError("the channel was closed")) if ended.done() else None
    except LOST as error:
        return error
    except Exception as error:
        if type(error) is not Exception:  # aiormq raises this bare type when the connection is lost during a call
            raise
        return error


def _run(work: Callable[..., Any], urls: Sequence[str], box: type, ledger: Ledger, *rest: Any) -> None:
    """Run one client until it ends; after each lost connection it uses its next URL."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process ends the others
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end when the first process is killed
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # the kill is expected; any other loss ends the client
    try:
        state = box(ledger, *rest)
        for url in cycle(urls):
            if (generation := ledger.await_broker()) is None:
                return
            error = asyncio.run(work(url, state)) if inspect.iscoroutinefunction(work) else work(url, state)
            if error is None:
                return
            ledger.lost(generation, error)
    except BaseException:  # noqa: BLE001  any error ends this client and is shown
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # does not wait for threads and loops that may hang on a dead connection


class Clients:
    """The running processes of one run: the publishers, and the consumers of each library.

    Shapes: client n connects to `urls(n)`; the publishers are first, then pika's consumers. `queues` has the queues of
    each consumer, by index in the plan and name.
    """

    def __init__(
        self, ledger: Ledger, urls: Callable[[int], Sequence[str]], flights: Path, queues: Any, options: Options
    ) -> None:
        cuts = [part * ledger.rows // PUBLISHERS for part in range(PUBLISHERS + 1)]
        works: list[Any] = [(publisher, Outbox, flights, first, end) for first, end in pairwise(cuts)]
        consumers: list[Any] = [pika_consumer] * options.pika_consumers + [aio_pika_consumer] * options.aio_consumers
        works += [(work, Inbox, group, options.prefetch) for work, group in zip(consumers, queues, strict=True)]
        self._processes = [
            SPAWN.Process(name=work.__name__, target=_run, args=(work, urls(n), box, ledger, n, *rest), daemon=True)
            for n, (work, box, *rest) in enumerate(works)
        ]
        for process in self._processes:
            process.start()

    def check(self) -> None:
        """Raise Failed with the name of a client that ended with an error."""
        for process in self._processes:
            if process.exitcode:
                raise Failed(f"the {process.name} ended with exit code {process.exitcode}; its error is above")

    def join(self, seconds: float) -> None:
        """Wait until the clients have ended. Raises: Failed when one has failed, or takes longer than this."""
        for process in self._processes:
            process.join(seconds)
        self.check()
        if any(process.is_alive() for process in self._processes):
            raise Failed(f"a client did not end within {seconds:.0f} s")

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
