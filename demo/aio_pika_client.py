"""The clients that use aio-pika, each for one connection."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import AMQPConnectionError, ChannelInvalidStateError, DeliveryError, PublishError

from demo.boxes import Inbox, Outbox
from demo.plan import EXCHANGE

PUBLISH_WINDOW = 500  # unconfirmed messages

# The errors of a publish in flight when the connection is lost; the client library itself cancels some.
LOST = (AMQPConnectionError, ChannelInvalidStateError, ConnectionError, asyncio.CancelledError)


async def connect(url: str, name: str) -> AbstractConnection:
    """Return a connection that appears under this name in the broker."""
    properties: Any = {"connection_name": name}
    return await aio_pika.connect(url, client_properties=properties)


def publish_with_aio_pika(url: str, outbox: Outbox) -> object:
    """Publish until every flight is confirmed; return None, or the error that ended the connection before."""
    return asyncio.run(_publish(url, outbox))


async def _publish(url: str, outbox: Outbox) -> BaseException | None:
    try:
        connection = await connect(url, "demo publisher (aio-pika)")
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await channel.get_exchange(EXCHANGE, ensure=False)
    except LOST as error:
        return error
    outbox.connected()
    try:
        # One coroutine per possible unconfirmed message: each sends one flight and waits for its answer.
        window = outbox.window(PUBLISH_WINDOW)
        errors = await asyncio.gather(*(_publish_in_turn(exchange, outbox) for _ in range(window)))
        return next(filter(None, errors), None)
    finally:
        await connection.close()


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


def consume_with_aio_pika(url: str, inbox: Inbox) -> object:
    """Consume until the run is over; return None, or the error that ended the connection before."""
    return asyncio.run(_consume(url, inbox))


async def _consume(url: str, inbox: Inbox) -> BaseException | None:
    connection: AbstractConnection | None = None
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
        connection = await connect(url, "demo consumer (aio-pika)")
        channel = await connection.channel()
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        channel.close_callbacks.add(lambda _, error: None if ended.done() else ended.set_result(error))
        await channel.set_qos(prefetch_count=inbox.prefetch)
        inbox.connected()
        for index, name in inbox.queues:
            queue = await channel.get_queue(name, ensure=False)
            await queue.consume(partial(delivered, index))
        while not inbox.stopping() and not ended.done():
            await asyncio.wait([ended], timeout=0.1)
            await ack()
        return (ended.result() or ConnectionError("the channel was closed")) if ended.done() else None
    except LOST as error:
        return error
    except Exception as error:
        if type(error) is not Exception:  # aiormq raises this bare type when the connection is lost during a call
            raise
        return error
    finally:
        if connection is not None:
            await connection.close()
