"""The publisher and the consumer that use aio-pika. Each function is the main function of one process."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import AMQPConnectionError, ChannelInvalidStateError, DeliveryError, PublishError

from demo.flights import FlightsFile
from demo.inbox import Inbox
from demo.ledger import Address, Ledger
from demo.outbox import Outbox
from demo.plan import EXCHANGE
from demo.window import Flight, window_of

PUBLISH_WINDOW = 500  # unconfirmed messages

# The errors of a publish in flight when the connection is lost; the client library itself cancels some.
LOST = (AMQPConnectionError, ChannelInvalidStateError, ConnectionError, asyncio.CancelledError)


async def _connect(address: Address, name: str) -> AbstractConnection:
    return await aio_pika.connect(
        host=address.host,
        port=address.port,
        login=address.user,
        password=address.password,
        virtualhost=address.vhost,
        client_properties={"connection_name": name},
    )


def publish_with_aio_pika(
    ledger: Ledger, client: int, address: Address, flights: FlightsFile, first: int, end: int
) -> None:
    """Publish the rows from first up to end, each until it is confirmed.

    Raises: ConnectionUnexpectedlyLost when the connection is lost although the broker was not killed; aio-pika's error
    when the channel is closed.
    """
    outbox = Outbox(ledger, client, flights.read(first, end))
    unconfirmed: list[Flight] = []
    while (generation := ledger.await_broker()) is not None:
        errors = asyncio.run(_publish(address, outbox, unconfirmed, window_of(flights.rows, PUBLISH_WINDOW)))
        if not errors:
            return
        ledger.lost(generation, errors[0])
        unconfirmed.sort()


async def _publish(address: Address, outbox: Outbox, unconfirmed: list[Flight], most: int) -> list[BaseException]:
    """Publish over one connection; return the errors, and leave in `unconfirmed` the flights to send again."""
    try:
        connection = await _connect(address, "demo publisher (aio-pika)")
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await channel.get_exchange(EXCHANGE, ensure=False)
    except LOST as error:
        return [error]
    outbox.connected(unconfirmed)
    unconfirmed.clear()
    try:
        # One coroutine per possible unconfirmed message: each sends one flight and waits for its answer.
        ended = await asyncio.gather(*(_publish_in_turn(exchange, outbox, unconfirmed) for _ in range(most)))
        return [error for error in ended if error is not None]
    finally:
        await connection.close()


async def _publish_in_turn(
    exchange: AbstractExchange, outbox: Outbox, unconfirmed: list[Flight]
) -> BaseException | None:
    while (flight := outbox.take()) is not None:
        message = aio_pika.Message(
            flight.body,
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=str(flight.row),
        )
        try:
            await exchange.publish(message, flight.key, mandatory=True)
        except PublishError:
            outbox.returned()
            outbox.confirmed([flight])
        except DeliveryError:
            outbox.refused([flight])
        except LOST as error:
            unconfirmed.append(flight)
            return error
        else:
            outbox.confirmed([flight])
    return None


def consume_with_aio_pika(
    ledger: Ledger, client: int, address: Address, queues: Sequence[tuple[int, str]], prefetch: int
) -> None:
    """Consume the queues, each an index and a name, until the run is over.

    Raises: ConnectionUnexpectedlyLost when connection or channel is lost although the broker was not killed.
    """
    inbox = Inbox(ledger, client, [index for index, _ in queues], ack_every=prefetch // 2 or 1)
    while (generation := ledger.await_broker()) is not None:
        error = asyncio.run(_consume(ledger, inbox, address, queues, prefetch))
        if error is None:
            return
        ledger.lost(generation, error)


async def _consume(
    ledger: Ledger, inbox: Inbox, address: Address, queues: Sequence[tuple[int, str]], prefetch: int
) -> BaseException | None:
    """Consume over one connection; return the error that ended it, None when the run is over."""
    connection: AbstractConnection | None = None
    try:
        connection = await _connect(address, "demo consumer (aio-pika)")
        channel = await connection.channel()
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        channel.close_callbacks.add(partial(_note_end, ended))
        await channel.set_qos(prefetch_count=prefetch)
        inbox.connected()
        acker = _Acker(inbox)
        for index, name in queues:
            queue = await channel.get_queue(name, ensure=False)
            await queue.consume(partial(acker.delivered, index))
        while not ledger.stopping and not ended.done():
            await asyncio.wait([ended], timeout=0.1)
            await acker.ack()
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


def _note_end(ended: asyncio.Future[BaseException | None], _: object, error: BaseException | None) -> None:
    if not ended.done():
        ended.set_result(error)


class _Acker:
    """Puts deliveries into the inbox and acks up to the newest of them."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._newest: AbstractIncomingMessage | None = None

    async def delivered(self, index: int, message: AbstractIncomingMessage) -> None:
        """Take one delivery."""
        self._newest = message
        tag, key = message.delivery_tag or 0, message.routing_key or ""
        if self._inbox.take(index, tag, bool(message.redelivered), message.message_id, key, message.body):
            await self.ack()

    async def ack(self) -> None:
        """Ack pending deliveries; a lost connection is detected elsewhere."""
        if self._newest is None or not self._inbox.owes_ack:
            return
        self._inbox.acked()  # before the await: later deliveries belong to the next ack
        with suppress(*LOST):
            await self._newest.ack(multiple=True)
