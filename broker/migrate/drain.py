"""Drains one queue of the source into the queue of the same name at the target.

    take a batch -> commit at the source: acks of the batch before, and the marker of this one
                 -> publish at the target, with numbers -> await the confirms -> take the next batch

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
PATIENCE_S: Final = 90.0  # after which a source has detected a lost connection by missing heartbeats
POLL_S: Final = 0.5
NOT_FOUND: Final = 404
DOUBTFUL: Final = "x-possibly-duplicate"
PRODUCER, SEQUENCE, OWN_TABLE = "x-producer", "x-seq", "x-producer-table"
TIMESTAMP_MS: Final = "timestamp_in_ms"  # what RabbitMQ's plugin message_timestamp adds


def own_name(queue: str) -> str:
    """Return the name that the drain of a queue uses for its marker's queue and its exchange at the target."""
    return f"slotmq-migrate.{hashlib.blake2b(queue.encode(), digest_size=8).hexdigest()}"


class Drain:
    """Move the messages of a queue, in each run until it is empty or `stop` returns True.

    Shapes: `passed` is called with the name of each finished step; `returned` messages were in flight when an earlier
        run stopped, and kept their numbers; `doubtful` ones were published with the header x-possibly-duplicate;
        `in_flight` ones may be in both brokers now; `fault` says why the queue could not be drained, empty if it was.
    Units: `patience_s` is how long a source may take to deliver the messages that it counts, and to requeue those that
        an earlier run held.
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
        passed: Callable[[str], None] = lambda _step: None,
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
        self._passed = passed
        self._stop = stop

    def fail(self, reason: Exception) -> None:
        """Record why the queue could not be drained."""
        self.fault = str(reason)

    async def run(self) -> None:
        """Drain the queue."""
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
                    self._passed("marker deleted")
                    await target.call(commands.Exchange.Delete(exchange=self._own))
                await target.close()
            finally:
                target.abort()
            await source.close()
        finally:
            source.abort()

    async def _prepare_target(self, target: MigrationLink) -> None:
        """Declare an exchange that leads to the queue alone, whatever the routing key: so messages keep theirs."""
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
        """Read the marker, begin transactions and consume."""
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
            await self._await_alone(source)
        await source.call(ConsumeAny(queue=self.queue))
        return Numbering(marker)

    async def _await_alone(self, source: MigrationLink) -> None:
        """Check that there is no other consumer; one of an earlier run may remain until the source detects its loss."""
        end_s = time.monotonic() + self._patience_s
        while consumers := (await source.call(DeclareAny(queue=self.queue, passive=True))).consumer_count:
            if not self.in_flight or time.monotonic() > end_s:
                raise MigrationFault(
                    f"it has consumers at the source ({consumers}): stop them, or give --beside-consumers"
                )
            await asyncio.sleep(POLL_S)

    async def _move(self, source: MigrationLink, target: MigrationLink, numbering: Numbering) -> None:
        """Move until the queue is empty or the run should stop; nothing of this run is in flight then."""
        before: Sequence[Numbered] = ()
        while not self._stop():
            if not source.deliveries:
                before = await self._commit(source, numbering, (), before)
                if not await self._more_comes(source, numbering):
                    return
            batch = self._batch(source, numbering)
            self._passed("taken")
            before = await self._commit(source, numbering, batch, before)
            await self._publish(target, numbering.producer, batch)
        await self._commit(source, numbering, (), before)

    def _batch(self, source: MigrationLink, numbering: Numbering) -> list[Numbered]:
        """Return the deliveries that wait, up to the size of a batch."""
        batch: list[Numbered] = []
        size_bytes = 0
        while source.deliveries and len(batch) < self._batch_messages and size_bytes < BATCH_BYTES:
            batch.append(numbering.number(source.take()))
            size_bytes += len(batch[-1].delivery.body)
        return batch

    async def _commit(
        self, source: MigrationLink, numbering: Numbering, batch: Sequence[Numbered], before: Sequence[Numbered]
    ) -> Sequence[Numbered]:
        """Acknowledge one batch and mark the next one in a transaction, and return the next one."""
        if not batch and not before:
            return ()
        marker = numbering.marker(batch, before)
        body = marker.encode()
        source.publish("", self._own, encode_header(PERSISTENT, len(body)), body)
        if before:
            source.send(commands.Basic.Ack(before[-1].delivery.method.delivery_tag, multiple=True))
        self._passed("marker sent")
        await source.call(commands.Tx.Commit())
        self.moved += len(before)
        self.doubtful += sum(one.doubtful for one in before)
        self.in_flight = len(marker.in_flight)
        self._passed("committed")
        return batch

    async def _publish(self, target: MigrationLink, producer: str, batch: Sequence[Numbered]) -> None:
        for one in batch:
            key = one.delivery.method.routing_key or ""
            target.publish(self._own, key, forwarded_header(one, producer), one.delivery.body)
            await target.until_writable()
            self._passed("published")
        await target.until(lambda: target.confirmed >= target.published)
        self._passed("confirmed")

    async def _more_comes(self, source: MigrationLink, numbering: Numbering) -> bool:
        """Wait for a delivery; return False if the queue is empty, and an earlier run holds nothing that may return."""
        end_s = time.monotonic() + self._patience_s
        while not source.deliveries and not self._stop():
            ready = (await source.call(DeclareAny(queue=self.queue, passive=True))).message_count
            if source.deliveries:
                break
            if time.monotonic() > end_s:
                if ready:
                    raise MigrationFault(f"the source has messages and delivered none for {self._patience_s:g} s")
                return False
            if not ready and not numbering.absent:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await source.until(lambda: bool(source.deliveries))
        return bool(source.deliveries)


def forwarded_header(message: Numbered, producer: str, now_s: float | None = None) -> bytes:
    """Return the header with the number, and with the remaining expiration. Raises: MigrationFault. Everything else
    keeps its octets. Counters of a source's quorum queue are left out.
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
    left_ms = remaining_ms(header, time.time() if now_s is None else now_s)
    properties = {} if left_ms is None else {"expiration": str(left_ms)}
    return edit_header(header, set_headers=headers, drop_headers=drop, set_properties=properties)


def remaining_ms(header: bytes, now_s: float) -> int | None:
    """Return the remaining expiration, if the message has a timestamp; None to leave it unchanged. If the expiration
    has already passed, the timestamp was not that of the publish, or the source would have dropped the message.
    """
    text = read_text(header, "expiration")
    if text is None or not text.isdecimal():
        return None
    expiration_ms = int(text)
    made_ms = read_headers(header, TIMESTAMP_MS).get(TIMESTAMP_MS)
    if not isinstance(made_ms, int):
        stamp = cut_properties(header).get("timestamp")
        if stamp is None:
            return None
        made_ms = int.from_bytes(stamp, "big") * 1000
    age_ms = int(now_s * 1000) - made_ms
    return max(1, expiration_ms - age_ms) if 0 < age_ms < expiration_ms else None
