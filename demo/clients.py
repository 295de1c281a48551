"""The client processes of a run: publishers and consumers that use pika and aio-pika, each with one connection."""

import asyncio
import ctypes
import inspect
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import aio_pika
import pika
from aio_pika.abc import AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import ChannelInvalidStateError, DeliveryError, PublishError
from pika.adapters.blocking_connection import BlockingChannel

from demo.ledger import SPAWN, Failed, Inbox, Ledger, Outbox
from demo.plan import EXCHANGE

PUBLISHERS = 2
AIO_PUBLISH_PART = 0.2  # a message costs aio-pika about six times pika's processor time; so both end at the same time
PIKA_WINDOW, AIO_WINDOW = 2_000, 500  # unconfirmed messages

# The errors of a publish in flight when the connection is lost; aio-pika itself cancels some.
LOST = (aio_pika.exceptions.AMQPConnectionError, ChannelInvalidStateError, ConnectionError, asyncio.CancelledError)


def _parameters(url: str, name: str) -> pika.URLParameters:
    parameters = pika.URLParameters(url)
    parameters.client_properties = {"connection_name": name}
    return parameters


@contextmanager
def channel_to(url: str, name: str = "demo topology") -> Iterator[BlockingChannel]:
    """Yield a channel of a connection of its own."""
    with pika.BlockingConnection(_parameters(url, name)) as connection:
        yield connection.channel()


def _publish_with_pika(url: str, outbox: Outbox) -> object:
    """Publish until every flight is confirmed; return None, or the error that ended the connection before."""
    window = outbox.window(PIKA_WINDOW)
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
        _parameters(url, "demo publisher (pika)"),
        on_open_callback=lambda connection: connection.channel(on_open_callback=opened),
        on_open_error_callback=closed,
        on_close_callback=closed,
    ).ioloop.start()
    return None if outbox.finished else errors[0]


def _consume_with_pika(url: str, inbox: Inbox) -> object:
    """Consume until the run is over; return None, or the error that ended the connection before."""

    def delivered(index: int, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        tag, redelivered, key = method.delivery_tag, method.redelivered, method.routing_key
        if inbox.take(index, tag, redelivered, properties.message_id, key, body):
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
    """Return a connection that appears under this name in the broker."""
    properties: Any = {"connection_name": name}
    return await aio_pika.connect(url, client_properties=properties)


async def _publish_with_aio_pika(url: str, outbox: Outbox) -> object:
    """Publish until every flight is confirmed; return None, or the error that ended the connection before."""
    try:
        async with await connect(url, "demo publisher (aio-pika)") as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = await channel.get_exchange(EXCHANGE, ensure=False)
            outbox.connected()
            # One coroutine per possible unconfirmed message: each sends one flight and waits for its answer.
            window = outbox.window(AIO_WINDOW)
            errors = await asyncio.gather(*(_publish_in_turn(exchange, outbox) for _ in range(window)))
            return next(filter(None, errors), None)
    except LOST as error:
        return error


async def _publish_in_turn(exchange: AbstractExchange, outbox: Outbox) -> BaseException | None:
    while (taken := outbox.take()) is not None:
        tag, (row, key, body) = taken
        message = aio_pika.Message(body, content_type="application/json", delivery_mode=2, message_id=str(row))
        try:
            await exchange.publish(message, key, mandatory=True)
            outbox.confirmed(tag)
        except PublishError:
            outbox.returned()
            outbox.confirmed(tag)
        except DeliveryError:
            outbox.refused(tag)
        except LOST as error:
            return error
    return None


async def _consume_with_aio_pika(url: str, inbox: Inbox) -> object:
    """Consume until the run is over; return None, or the error that ended the connection before."""
    newest: AbstractIncomingMessage | None = None

    async def delivered(index: int, message: AbstractIncomingMessage) -> None:
        nonlocal newest
        newest = message
        tag, key = message.delivery_tag or 0, message.routing_key or ""
        if inbox.take(index, tag, bool(message.redelivered), message.message_id, key, message.body):
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


def _live(work: Callable[..., Any], urls: Sequence[str], box: type, ledger: Ledger, *rest: Any) -> None:
    """Run one client until it ends; with each connection that it loses it goes on to its next URL."""
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
        os._exit(1)  # without the wait for threads and loops that may hang on a dead connection


class Clients:
    """The running processes of one run: two publishers, and consumers of each library.

    Shapes: client n connects to `urls(n)`; the publishers are clients 0 and 1, pika's consumers follow. A consumer's
    queues are each an index in the plan and a name.
    """

    def __init__(
        self, ledger: Ledger, urls: Callable[[int], Sequence[str]], flights: Path,
        pika_queues: Sequence[object], aio_queues: Sequence[object], prefetch: int,
    ) -> None:  # fmt: skip
        cut = ledger.rows - int(ledger.rows * AIO_PUBLISH_PART)
        works: list[tuple[str, Callable[..., object], type, tuple[Any, ...]]] = [
            ("publisher (pika)", _publish_with_pika, Outbox, (flights, 0, cut)),
            ("publisher (aio-pika)", _publish_with_aio_pika, Outbox, (flights, cut, ledger.rows)),
            *(("consumer (pika)", _consume_with_pika, Inbox, (queues, prefetch)) for queues in pika_queues),
            *(("consumer (aio-pika)", _consume_with_aio_pika, Inbox, (queues, prefetch)) for queues in aio_queues),
        ]
        self._processes = [
            SPAWN.Process(name=name, target=_live, args=(work, urls(n), box, ledger, n, *rest), daemon=True)
            for n, (name, work, box, rest) in enumerate(works)
        ]
        for process in self._processes:
            process.start()

    def check(self) -> None:
        """Raise Failed with the name of a client that ended with an error."""
        for process in self._processes:
            if process.exitcode:
                raise Failed(f"the {process.name} ended with exit code {process.exitcode}; its error is above")

    def join(self, seconds: float) -> bool:
        """Return whether every client has ended in so many seconds. Raises: Failed when one has failed."""
        deadline_s = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        self.check()
        return all(process.exitcode is not None for process in self._processes)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
