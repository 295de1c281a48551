"""Drain one queue of the source into the queue of the same name at the target.

    receive a batch -> commit at the source: acks of the previous batch, and the marker of this one
                    -> publish at the target, with numbers -> await the confirms -> receive the next batch

Invariant: a message is acknowledged at the source only after the target has confirmed it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from pamqp import commands

from broker.amqp.content_header import measure_header
from broker.amqp.errors import ProtocolError
from broker.amqp.header_edit import cut_properties, edit_header, encode_header, read_headers, read_text
from broker.amqp.lenient_methods import BindAny, ConsumeAny, DeclareAny
from broker.client.address import AmqpAddress
from broker.migrate.link import MethodRefused, MigrationFault, MigrationLink
from broker.migrate.marker import COUNTED, NO_ENTRIES, Marker, Numbered, Numbering

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 16 << 20
PERSISTENT: Final = {"delivery_mode": 2}
PATIENCE_S: Final = 90.0  # long enough for the source to detect a lost connection from missing heartbeats
POLL_S: Final = 0.5
NOT_FOUND: Final = 404
OWN_PREFIX: Final = "slotmq-migrate."
DOUBTFUL: Final = "x-possibly-duplicate"
PRODUCER, SEQUENCE, OWN_TABLE = "x-producer", "x-seq", "x-producer-table"
TIMESTAMP_MS: Final = "timestamp_in_ms"  # a header of RabbitMQ's message timestamp plugin


def own_name(queue: str) -> str:
    """Return the name of the marker's queue at the source and of the exchange at the target, for one drained queue."""
    return f"{OWN_PREFIX}{hashlib.blake2b(queue.encode(), digest_size=8).hexdigest()}"


class Drain:
    """Move the messages of a queue. Each run ends when the queue is empty or `stop` returns True.

    Shapes: `step_done` is called with the name of each finished step. `returned` counts messages of an earlier run that
        were in flight and were moved with their old numbers, `doubtful` messages published with the header
        x-possibly-duplicate, and `in_flight` messages that may be in both brokers now. `fault` is the reason why the
        queue could not be drained, or empty.
    Units: `patience_s` is how long the source may take to deliver the messages that it counts, and to requeue the
        unacked messages of an earlier run.
    Raises: MigrationFault from `run`.
    """

    def __init__(
        self,
        source: AmqpAddress,
        target: AmqpAddress,
        queue: str,
        *,
        beside_consumers: bool = False,
        batch_messages: int = BATCH_MESSAGES,
        patience_s: float = PATIENCE_S,
        step_done: Callable[[str], None] = lambda _step: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.queue = queue
        self.moved = self.returned = self.doubtful = self.in_flight = 0
        self.fault = ""
        self._addresses = source, target
        self._own = own_name(queue)
        self._beside_consumers = beside_consumers
        self._batch_messages = batch_messages
        self._patience_s = patience_s
        self._step_done = step_done
        self._stop = stop

    def fail(self, reason: Exception) -> None:
        self.fault = str(reason)

    async def run(self) -> None:
        source_address, target_address = self._addresses
        source = await MigrationLink.open(source_address, "source")
        try:
            target = await MigrationLink.open(target_address, "target")
            try:
                await self._prepare_target(target)
                numbering = await self._prepare_source(source)
                await self._move(source, target, numbering)
                self.returned -= numbering.absent
                if not numbering.absent:
                    await source.call(commands.Queue.Delete(queue=self._own))
                    self._step_done("marker deleted")
                    await target.call(commands.Exchange.Delete(exchange=self._own))
                await target.close()
            finally:
                target.abort()
            await source.close()
        finally:
            source.abort()

    async def _prepare_target(self, target: MigrationLink) -> None:
        """Declare an exchange that routes only to the queue, so that messages keep their routing keys."""
        try:
            await target.call(DeclareAny(queue=self.queue, passive=True))
        except MethodRefused as refused:
            if refused.code == NOT_FOUND:
                raise MigrationFault("the target has no such queue: import the definitions, or declare it") from None
            raise
        await target.call(commands.Exchange.Declare(exchange=self._own, exchange_type="fanout", durable=True))
        await target.call(BindAny(queue=self.queue, exchange=self._own))
        await target.call(commands.Confirm.Select())

    async def _prepare_source(self, source: MigrationLink) -> Numbering:
        """Read the marker, select transactions, wait for other consumers to end unless allowed, and consume."""
        await source.call(DeclareAny(queue=self._own, durable=True, arguments={"x-max-length": 1}))
        found = await source.call(commands.Basic.Get(queue=self._own))  # the next marker replaces it
        marker = Marker.new() if isinstance(found, commands.Basic.GetEmpty) else Marker.decode(found.body)
        self.in_flight = len(marker.in_flight)
        self.returned += self.in_flight
        if not isinstance(found, commands.Basic.GetEmpty):
            source.send(commands.Basic.Nack(found.method.delivery_tag, requeue=True))
        await source.call(commands.Tx.Select())
        await source.call(commands.Basic.Qos(prefetch_count=2 * self._batch_messages))
        if not self._beside_consumers:
            await self._await_no_consumers(source)
        await source.call(ConsumeAny(queue=self.queue))
        return Numbering(marker)

    async def _await_no_consumers(self, source: MigrationLink) -> None:
        """Wait until the consumer of an earlier run is gone. Raises: MigrationFault if consumers remain."""
        end_s = time.monotonic() + self._patience_s
        while consumers := (await source.call(DeclareAny(queue=self.queue, passive=True))).consumer_count:
            if not self.in_flight or time.monotonic() > end_s:
                raise MigrationFault(
                    f"it has consumers at the source ({consumers}): stop them, or give --beside-consumers"
                )
            await asyncio.sleep(POLL_S)

    async def _move(self, source: MigrationLink, target: MigrationLink, numbering: Numbering) -> None:
        """Move messages until the queue is empty or the run should stop; then no message of this run is in flight."""
        previous: Sequence[Numbered] = ()
        while not self._stop():
            if not source.deliveries:
                previous = await self._commit(source, numbering, (), previous)
                if not await self._has_more(source, numbering):
                    return
            batch = self._batch(source, numbering)
            self._step_done("taken")
            previous = await self._commit(source, numbering, batch, previous)
            await self._publish(target, numbering.producer, batch)
        await self._commit(source, numbering, (), previous)

    def _batch(self, source: MigrationLink, numbering: Numbering) -> list[Numbered]:
        """Return the next batch of received deliveries, with a number for each."""
        batch: list[Numbered] = []
        size_bytes = 0
        while source.deliveries and len(batch) < self._batch_messages and size_bytes < BATCH_BYTES:
            batch.append(numbering.number(source.take()))
            size_bytes += len(batch[-1].delivery.body)
        return batch

    async def _commit(
        self, source: MigrationLink, numbering: Numbering, batch: Sequence[Numbered], previous: Sequence[Numbered]
    ) -> Sequence[Numbered]:
        """Acknowledge the previous batch and replace the marker in one transaction, and return `batch`."""
        if not batch and not previous:
            return ()
        marker = numbering.marker(batch, previous)
        body = marker.encode()
        source.publish("", self._own, encode_header(PERSISTENT, len(body)), body)
        if previous:
            source.send(commands.Basic.Ack(previous[-1].delivery.method.delivery_tag, multiple=True))
        self._step_done("marker sent")
        await source.call(commands.Tx.Commit())
        self.moved += len(previous)
        self.doubtful += sum(one.doubtful for one in previous)
        self.in_flight = len(marker.in_flight)
        self._step_done("committed")
        return batch

    async def _publish(self, target: MigrationLink, producer: str, batch: Sequence[Numbered]) -> None:
        for one in batch:
            key = one.delivery.method.routing_key or ""
            target.publish(self._own, key, forwarded_header(one, producer), one.delivery.body)
            await target.until_writable()
            self._step_done("published")
        await target.until(lambda: target.confirmed >= target.published)
        self._step_done("confirmed")

    async def _has_more(self, source: MigrationLink, numbering: Numbering) -> bool:
        """Wait for a delivery, and return False if the queue is empty or the run should stop.

        Raises: MigrationFault if the source has messages and does not deliver them.
        """
        end_s = time.monotonic() + self._patience_s
        while not source.deliveries and not self._stop():
            ready = (await source.call(DeclareAny(queue=self.queue, passive=True))).message_count
            if source.deliveries:
                break
            if time.monotonic() > end_s:
                if ready:
                    raise MigrationFault(f"the source has messages and has delivered none for {self._patience_s:g} s")
                return False
            if not ready and not numbering.absent:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await source.until(lambda: bool(source.deliveries))
        return bool(source.deliveries)


def forwarded_header(message: Numbered, producer: str, now_s: float | None = None) -> bytes:
    """Return the header to publish. It contains the message's number, producer and remaining expiration, but not the
    delivery counters of a quorum queue. Raises: MigrationFault if the header of the source cannot be read.
    """
    header = message.delivery.header
    try:
        measure_header(header)
    except ProtocolError as error:
        raise MigrationFault(f"a message of the source cannot be read: {error}") from None
    table = cut_properties(header).get("headers")
    drop = [name for name in COUNTED if name in read_headers(header, *COUNTED)]
    headers: dict[str, Any] = {PRODUCER: producer, SEQUENCE: message.number}
    if table == NO_ENTRIES:
        headers[OWN_TABLE] = True
    if message.doubtful:
        headers[DOUBTFUL] = True
    expiration_ms = remaining_ms(header, time.time() if now_s is None else now_s)
    properties = {} if expiration_ms is None else {"expiration": str(expiration_ms)}
    return edit_header(header, set_headers=headers, drop_headers=drop, set_properties=properties)


def remaining_ms(header: bytes, now_s: float) -> int | None:
    """Return the remaining expiration, or None if it is unknown: without an expiration or a plausible timestamp."""
    text = read_text(header, "expiration")
    if text is None or not text.isdecimal():
        return None
    expiration_ms = int(text)
    published_ms = read_headers(header, TIMESTAMP_MS).get(TIMESTAMP_MS)
    if not isinstance(published_ms, int):
        stamp = cut_properties(header).get("timestamp")
        if stamp is None:
            return None
        published_ms = int.from_bytes(stamp, "big") * 1000
    age_ms = int(now_s * 1000) - published_ms
    return max(1, expiration_ms - age_ms) if 0 < age_ms < expiration_ms else None
