"""The Basic class on one channel, except publishing: qos, consume, cancel, get, ack, nack, reject, recover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Final

from pamqp import commands

from broker.amqp.channel import Channel
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.amqp.lenient_methods import BasicGetOk
from broker.core.message.message import Message, with_delivery_count
from broker.core.queue.consumer import UNLIMITED, ChannelConsumers, Consumer, consumer_priority, consumer_timeout_ms
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.core.queue.unacked import SlotDelivery, by_slot, differ
from broker.core.session.client import SessionClient
from broker.core.sliced_work import MESSAGES_PER_UNIT
from broker.core.vhost import Vhost
from broker.slots.slot import Slot

# Celery raises the prefetch of a running consumer for each task with a countdown, and lowers it again. kombu sends that
# with global=true to a broker that calls itself RabbitMQ 3.3 to 3.13, and with global=false to any other: there it
# expects that basic.qos applies to the whole channel, including running consumers, as in the AMQP 0-9-1 specification.
QOS_OF_RUNNING_CONSUMERS: Final = "py-amqp"
RABBITMQ: Final = "RabbitMQ"
MARKS_MAX: Final = 4096  # marks per channel for the consumer timeout
DELIVERIES_AT_ONCE: Final = 16  # above this number of runs of messages, an ack or nack may take several steps


class BasicSession(ChannelConsumers):
    """The consumers, the fetched messages and the acknowledgements of one channel."""

    __slots__ = ("_channel", "_fetches", "_marks", "_session", "_vhost", "closed", "consumers_max")

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        deliveries = vhost.tally.deliveries_of(session.connection.protocol)
        super().__init__(session.connection, channel.number, session.output_window, vhost.share, deliveries)
        self._channel = channel
        self._session = session
        self._vhost = vhost
        self.closed = False
        self._fetches = False  # whether basic.get has delivered a message that must be acknowledged
        self.consumers_max = self.connection.limits.consumers_max
        self._marks: list[tuple[int, int]] = []  # (last delivery tag, when it was seen), for the consumer timeout

    # -- consume ------------------------------------------------------------------------------------------------------

    def qos(self, method: commands.Basic.Qos) -> None:
        """Set the prefetch. Raises: ConnectionFault 540 for a prefetch in bytes, as in RabbitMQ."""
        if method.prefetch_size:
            raise ConnectionFault(540, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.prefetch_channel = method.prefetch_count
            self.wake()
        else:
            self.prefetch_consumer = method.prefetch_count
            if self._qos_is_of_running_consumers():
                for consumer in self.consumers.values():
                    consumer.set_prefetch(method.prefetch_count)
            self.prefetch_channel = 0  # as in RabbitMQ, this lifts the limit of the channel
            self.wake()
        self._channel.send(commands.Basic.QosOk())

    def _qos_is_of_running_consumers(self) -> bool:
        """Return whether basic.qos with global=false applies to running consumers, as kombu expects unless the broker
        calls itself RabbitMQ.
        """
        connection = self.connection
        return (
            connection.client_properties.get("product") == QOS_OF_RUNNING_CONSUMERS
            and connection.server_properties.get("product") != RABBITMQ
        )

    def consume(self, method: commands.Basic.Consume, queue: Queue) -> None:
        """Start a consumer on `queue`.

        Raises: ChannelError 403 for a conflict over exclusive use, 406 for an invalid argument; ConnectionFault 530 for
            a tag in use, and at the limit of consumers.
        """
        tag = method.consumer_tag or self._vhost.new_name("amq.ctag-")
        if tag in self.consumers:
            raise ConnectionFault(530, f"attempt to reuse consumer tag '{tag}'")
        limit = self.consumers_max
        if limit and len(self.consumers) >= limit:
            raise ConnectionFault(530, f"reached maximum ({limit}) of consumers per channel")
        consumer = self.new_consumer(tag, queue, method)
        if (method.exclusive and (queue.rules.single_active or queue.consumers)) or queue.consumers.exclusive:
            raise ChannelError(403, f"{self._vhost.queue_resource(queue.name)} in exclusive use")
        self.consumers[tag] = consumer
        if not method.nowait:
            self._channel.send(commands.Basic.ConsumeOk(tag))
        if not consumer.takes_replies:
            for _ in range(self._session.drains):
                consumer.shut()
        if not method.nowait and self.connection.withholds_on(self.number):
            consumer.shut()
            self.connection.when_sent(self.number, consumer.open)
        queue.add_consumer(consumer)

    def new_consumer(self, tag: str, queue: Queue, method: commands.Basic.Consume) -> Consumer:
        """Create a consumer with the current prefetch. Raises: ChannelError 406."""
        arguments = dict(method.arguments or {})
        resource = self._vhost.queue_resource(queue.name)
        return Consumer(
            tag,
            queue,
            self,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            arguments=arguments,
            prefetch=self.prefetch_consumer,
            priority=consumer_priority(resource, arguments),
            timeout_ms=consumer_timeout_ms(resource, arguments),
        )

    def room_of_next(self, *, no_ack: bool) -> int:
        """Return how many messages a consumer that starts now would have room for."""
        room = UNLIMITED if no_ack or not self.prefetch_consumer else self.prefetch_consumer
        return max(0, min(room, self.room()))

    def cancel(self, method: commands.Basic.Cancel) -> None:
        """Cancel a consumer; its messages remain unacked. An unknown tag gets the same answer."""
        tag = method.consumer_tag or ""
        consumer = self.consumers.pop(tag, None)
        if not method.nowait:
            self._channel.send(commands.Basic.CancelOk(tag))
        if consumer is not None:
            self._leave(consumer)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer.tag, None)
        if self.connection.has_capability("consumer_cancel_notify"):
            self._channel.send(commands.Basic.Cancel(consumer.tag, True))

    def expel(self, consumer: Consumer) -> None:
        self.consumer_cancelled(consumer)
        self._leave(consumer)

    # -- get ----------------------------------------------------------------------------------------------------------

    def get(self, queue: Queue, *, no_ack: bool) -> None:
        """Answer with a message, or with get-empty if the queue is empty or paused. Hold the connection while a message
        is read from disk, or while expired messages are dropped over several turns.
        """
        queue.used()
        if queue.timed and not queue.check_expiry():
            self.connection.hold()
            deadlines = self._vhost.ports.deadlines
            deadlines.next_turn((self, queue), partial(self._get_later, queue, no_ack=no_ack))
            return
        found = None if queue.paused else queue.lease()
        if found is None:
            self.tally.found_empty(queue.level.tally)
            self._channel.send(commands.Basic.GetEmpty())
            return
        level, slot = found
        manager = level.manager
        if slot.contents is None:
            self.connection.hold()
            self._vhost.ports.read(level, slot, lambda: self._get_again(queue, level, slot, no_ack=no_ack))
            return
        index = queue.take(level, slot, 1)[0]
        message: Message = slot.contents[index]
        redelivered = slot.redelivered(index)
        header = message.header
        if queue.rules.counts_deliveries:
            header = with_delivery_count(header, slot.acquired_count(index), slot.delivery_count(index))
        self.tally.fetched(level.tally, again=redelivered, no_ack=no_ack)
        if no_ack:
            tag = self.unacked.skip_tag()
            level.settle_one(slot, index)
        else:
            self._fetches = True
            tag = self.unacked.add(level, slot, index)
        if not queue.consumers and slot.owner is not None:
            manager.end_lease(slot)
        envelope = message.envelope
        if self._vhost.firehose.active:
            self._vhost.firehose.delivered(self._session, self.number, queue, message, redelivered=redelivered)
        if queue.timed:
            queue.check_expiry()  # the message count of the answer does not include expired messages
        method = BasicGetOk(tag, redelivered, envelope.exchange, envelope.key, queue.remaining())
        self._channel.send_content(method, header, message.body)

    def _get_again(self, queue: Queue, level: Level, slot: Slot, *, no_ack: bool) -> None:
        """Continue a basic.get whose slot was read; another message may be the first by now."""
        self._get_later(queue, no_ack=no_ack)
        if not queue.deleted and not queue.consumers and slot.owner is not None:
            level.manager.end_lease(slot)

    def _get_later(self, queue: Queue, *, no_ack: bool) -> None:
        """Continue a basic.get that waited until a slot was read or expired messages were dropped."""
        self.connection.release()
        if self.closed:
            return
        if queue.deleted:
            self._channel.send(commands.Basic.GetEmpty())
        else:
            if queue.awake:
                queue.serve_first()
            self.get(queue, no_ack=no_ack)

    # -- settle -------------------------------------------------------------------------------------------------------

    def ack(self, tag: int, *, multiple: bool) -> None:
        """Settle the acknowledged deliveries. Raises: ChannelError 406 for an unknown delivery tag."""
        deliveries = self.unacked.take(tag, multiple=multiple)
        if len(deliveries) <= DELIVERIES_AT_ONCE:
            self.settle(deliveries)
        else:
            self._run(by_parts(deliveries, self.settle))

    def nack(self, tag: int, *, multiple: bool, requeue: bool, failed: bool) -> None:
        """Requeue, drop or dead-letter the rejected deliveries. Raises: ChannelError 406 for an unknown delivery tag.

        Source: RabbitMQ 4.3, rabbit_channel: after basic.reject the delivery has `failed`, after basic.nack it has not.
        """
        deliveries = self.unacked.take(tag, multiple=multiple)
        if len(deliveries) <= DELIVERIES_AT_ONCE:
            if requeue:
                self.requeue(deliveries, failed=failed)
            else:
                self.reject(deliveries, at_once=False)
        else:
            reject = partial(self.reject, at_once=False)
            self._run(self._returns(deliveries, failed=failed) if requeue else by_parts(deliveries, reject))

    def recover(self, *, requeue: bool, then: Callable[[], None] | None = None) -> None:
        """Requeue all unacked messages, then call `then`. Raises: ConnectionFault 540 for requeue=false."""
        if not requeue:
            raise ConnectionFault(540, "requeue=false")
        self._run(self._returns(self.unacked.take_all(), failed=False), then)

    def close(self) -> None:
        """End the consumers and requeue all unacked messages, because the channel is closed. Later answers on
        this channel number and the answer to connection.close are withheld until all messages are requeued.
        """
        self.closed = True
        consumers = list(self.consumers.values())
        self.consumers.clear()
        deliveries = self.unacked.take_all()
        for consumer in consumers:
            consumer.queue.remove_consumer(consumer)
        if len(deliveries) <= DELIVERIES_AT_ONCE:
            self.requeue(deliveries, failed=True)
        else:
            answers = self._vhost.answers
            answer = answers.promise(self._channel, None)
            returns = self._returns(deliveries, failed=True)
            self._vhost.ports.sliced.run(returns, partial(answers.release, self._channel, answer))
        for consumer in consumers:
            self._vhost.queues.consumer_left(consumer.queue)
        self.last_served = None  # break the reference cycle with the consumer

    # -- sliced work --------------------------------------------------------------------------------------------------

    def _run(self, steps: Iterator[int], then: Callable[[], None] | None = None) -> None:
        """Run steps in slices, then call `then`. Until then the connection is held, so that its next method waits."""
        self.connection.hold()
        self._vhost.ports.sliced.run(steps, partial(self._end_run, then))

    def _end_run(self, then: Callable[[], None] | None) -> None:
        self.connection.release()
        if then is not None:
            then()

    def _returns(self, deliveries: list[SlotDelivery], *, failed: bool) -> Iterator[int]:
        """Requeue deliveries in steps, and yield the cost of each step in units of the turn's share."""
        for delivery in deliveries:
            delivery.level.take_back(delivery.slot, delivery.indexes, failed=failed)
        self._credit(deliveries)
        for level in dict.fromkeys([delivery.level for delivery in deliveries]):
            while level.returning:
                yield level.return_next()

    # -- deliveries removed from `unacked` ----------------------------------------------------------------------------

    def settle(self, deliveries: list[SlotDelivery]) -> None:
        self._credit(deliveries)
        if len(deliveries) == 1 or differ(deliveries):
            for delivery in deliveries:
                level, count = delivery.level, delivery.count
                self.tally.acked(level.tally, count)
                if count == 1:
                    level.settle_one(delivery.slot, delivery.start)
                else:
                    level.settle(delivery.slot, delivery.indexes)
        else:
            for level, slot, indexes in by_slot(deliveries):
                self.tally.acked(level.tally, len(indexes))
                level.settle(slot, indexes)

    def reject(self, deliveries: list[SlotDelivery], *, at_once: bool = True) -> None:
        """Drop or dead-letter deliveries that were rejected; without `at_once`, dead letters may take several turns."""
        groups: list[tuple[Level, Slot, Sequence[int]]] = by_slot(deliveries)
        self._credit(deliveries)
        for level, slot, indexes in groups:
            level.dead_letter(slot, indexes, "rejected", at_once=at_once)

    def requeue(self, deliveries: list[SlotDelivery], *, failed: bool) -> None:
        """Return deliveries to their queues."""
        groups: list[tuple[Level, Slot, Sequence[int]]] = by_slot(deliveries)
        self._credit(deliveries)
        for level, slot, indexes in groups:
            level.requeue(slot, indexes, failed=failed)

    def _credit(self, deliveries: list[SlotDelivery]) -> None:
        shared = self.prefetch_channel != 0
        for delivery in deliveries:
            consumer = delivery.consumer
            if consumer is not None:
                count = delivery.count
                consumer.unacked -= count  # hot: set directly
                self.outstanding -= count
                if not shared:
                    queue = delivery.level.queue
                    if consumer.parked:
                        queue.consumers.unpark(consumer)
                    if not queue.awake and (queue.ready if queue.prioritized else delivery.level.manager.ready):
                        queue.wake()
        if shared:
            self.wake()

    def _leave(self, consumer: Consumer) -> None:
        consumer.queue.remove_consumer(consumer)
        self._vhost.queues.consumer_left(consumer.queue)

    # -- overdue ------------------------------------------------------------------------------------------------------

    def overdue(self, now_ms: int, timeout_ms: int) -> bool:
        """Return whether a delivery has been unacked for longer than the consumer timeout, which is 0 for no limit.

        This is called periodically. The time of a delivery starts with the next call, so the timeout is somewhat late,
        but no delivery needs a timestamp. If there are more than MARKS_MAX marks, every second one is removed: the time
        of its deliveries then starts with the next mark.
        """
        oldest = self.unacked.oldest
        marks = self._marks
        while marks and (oldest is None or marks[0][0] < oldest):
            del marks[0]
        if self.unacked.last_tag and oldest is not None and (not marks or marks[-1][0] < self.unacked.last_tag):
            marks.append((self.unacked.last_tag, now_ms))
            if len(marks) > MARKS_MAX:
                del marks[1:-1:2]
        return bool(marks) and timeout_ms > 0 and now_ms - marks[0][1] >= timeout_ms

    def timed_out(self, now_ms: int) -> list[tuple[Consumer, int]]:
        """Return the consumers with an overdue message, each with the last tag that is overdue. Call it after `overdue`
        with the same `now_ms`.
        """
        found = []
        for consumer in self.consumers.values():
            timeout_ms = consumer.timeout_in_force_ms
            if timeout_ms and consumer.unacked:
                place = bisect_right(self._marks, now_ms - timeout_ms, key=itemgetter(1))
                if place and self._marks[place - 1][0] >= self.unacked.oldest_of(consumer):
                    found.append((consumer, self._marks[place - 1][0]))
        return found

    def fetched_too_long(self, now_ms: int) -> int:
        """Return the consumer timeout, in milliseconds, of a queue with an overdue message from basic.get, else 0."""
        for run in self.unacked.runs if self._fetches else ():
            timeout_ms = run.level.queue.rules.consumer_timeout_ms
            if run.left and run.consumer is None and timeout_ms:
                since_ms = self.held_since_ms(run.low)
                if since_ms is not None and now_ms - since_ms >= timeout_ms:
                    return timeout_ms
        return 0

    def time_out(self, consumer: Consumer, upto: int) -> int:
        """Cancel a consumer, requeue its messages with tags up to `upto`, and return their number.

        Source: RabbitMQ 4.3: the deliveries have not failed, and their late acks have no effect.
        """
        self.expel(consumer)
        deliveries = self.unacked.take_back(consumer, upto)
        self._run(self._returns(deliveries, failed=False))
        return sum([delivery.count for delivery in deliveries])

    def held_since_ms(self, tag: int) -> int | None:
        """Return when the time of an unacked delivery started, or None if `overdue` has not been called since."""
        place = bisect_left(self._marks, tag, key=itemgetter(0))
        return self._marks[place][1] if place < len(self._marks) else None


def by_parts(
    deliveries: list[SlotDelivery], act: Callable[[list[SlotDelivery]], None], delivery_units: int = 1
) -> Iterator[int]:
    """Process up to DELIVERIES_AT_ONCE deliveries in each step, and yield its cost in units of the turn's share."""
    for start in range(0, len(deliveries), DELIVERIES_AT_ONCE):
        part = deliveries[start : start + DELIVERIES_AT_ONCE]
        act(part)
        yield len(part) * delivery_units + sum([delivery.count for delivery in part]) // MESSAGES_PER_UNIT
