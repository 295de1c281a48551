"""The Basic class on one channel, publishing apart: qos, consume, cancel, get, ack, nack, reject, recover (street
step 12).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pamqp import commands

from broker.amqp.codec import BasicGetOk
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.arguments import CONSUMER_NOT_YET, refuse_not_yet
from broker.core.consumer import UNLIMITED, Consumer
from broker.core.message import Message
from broker.core.unacked import Delivery, Unacked, by_slot

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.queue import Queue
    from broker.core.session.connection import SessionOfConnection
    from broker.core.vhost import Vhost
    from broker.slots.slot import Slot

__all__ = ["BasicSession"]


class BasicSession:
    """Consumes, fetches and settles for one channel.

    Units: ``prefetch_consumer`` is given to consumers that start later, ``prefetch_channel`` is shared by all of them
        (RabbitMQ's reading of basic.qos: global=false is per consumer). 0 means no limit.
    """

    __slots__ = (
        "_channel",
        "_session",
        "_vhost",
        "closed",
        "connection",
        "consumers",
        "last_served",
        "number",
        "outflow",
        "outstanding",
        "prefetch_channel",
        "prefetch_consumer",
        "unacked",
    )

    def __init__(self, channel: Channel, session: SessionOfConnection, vhost: Vhost) -> None:
        self._channel = channel
        self._session = session
        self._vhost = vhost
        self.connection = channel.connection
        self.outflow = session.outflow
        self.number = channel.number
        self.last_served: Consumer | None = None
        self.closed = False
        self.consumers: dict[str, Consumer] = {}
        self.unacked = Unacked()
        self.outstanding = 0  # deliveries to consumers that wait for an ack; what basic.get fetched does not count
        self.prefetch_consumer = 0
        self.prefetch_channel = 0

    def room(self) -> int:
        """Returns how many more deliveries the channel's shared prefetch allows."""
        return self.prefetch_channel - self.outstanding if self.prefetch_channel else UNLIMITED

    # -- consume ------------------------------------------------------------------------------------------------------

    def qos(self, method: commands.Basic.Qos) -> None:
        """Sets the prefetch. Raises: ConnectionFault 540 for a prefetch in bytes, as RabbitMQ."""
        if method.prefetch_size:
            raise ConnectionFault(540, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.prefetch_channel = method.prefetch_count
            self.wake()
        else:
            self.prefetch_consumer = method.prefetch_count
        self._channel.send(commands.Basic.QosOk())

    def consume(self, method: commands.Basic.Consume, queue: Queue) -> None:
        """Starts a consumer on `queue`.

        Raises: ChannelError 403 when somebody consumes exclusively; ConnectionFault 530 for a tag in use, 540 for an
            argument that is not there yet.
        """
        refuse_not_yet(self._vhost.queue_resource(queue.name), method.arguments or {}, CONSUMER_NOT_YET)
        tag = method.consumer_tag or self._vhost.new_name("amq.ctag-")
        if tag in self.consumers:
            raise ConnectionFault(530, f"attempt to reuse consumer tag '{tag}'")
        if queue.consumers and (method.exclusive or queue.consumers[0].exclusive):
            raise ChannelError(403, f"queue '{queue.name}' in vhost '{self._vhost.name}' in exclusive use")
        consumer = Consumer(
            tag,
            queue,
            self,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            arguments=dict(method.arguments or {}),
            prefetch=self.prefetch_consumer,
        )
        self.consumers[tag] = consumer
        if not method.nowait:
            self._channel.send(commands.Basic.ConsumeOk(tag))
        queue.add_consumer(consumer)

    def cancel(self, method: commands.Basic.Cancel) -> None:
        """Ends a consumer; what it has unacked stays with the channel. An unknown tag is answered just the same."""
        tag = method.consumer_tag or ""
        consumer = self.consumers.pop(tag, None)
        if not method.nowait:
            self._channel.send(commands.Basic.CancelOk(tag))
        if consumer is not None:
            self._leave(consumer)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Drops a consumer whose queue was deleted and tells a client that understands it."""
        self.consumers.pop(consumer.tag, None)
        if self.connection.has_capability("consumer_cancel_notify"):
            self._channel.send(commands.Basic.Cancel(consumer.tag, True))

    # -- get ----------------------------------------------------------------------------------------------------------

    def get(self, queue: Queue, *, no_ack: bool) -> None:
        """Fetches one message, through the slot manager like everybody else.

        When it lies on disk the connection is held, and the answer follows as soon as it was read.
        """
        manager = queue.manager
        owner = queue.worker.owner
        slot = manager.get(owner)
        if slot is None:
            self._channel.send(commands.Basic.GetEmpty())
            return
        if slot.contents is None:
            self.connection.hold()
            self._vhost.ports.read(queue, slot, lambda: self._get_again(queue, slot, no_ack=no_ack))
            return
        index = manager.take(slot, 1)[0]
        message: Message = slot.contents[index]
        redelivered = slot.redelivered(index)
        if no_ack:
            self.unacked.last_tag += 1
            tag = self.unacked.last_tag
            queue.settle(slot, range(index, index + 1))
        else:
            tag = self.unacked.add((queue, slot, index, None))
        if not queue.consumers and slot.lease is not None:
            manager.give_back(slot)
        envelope = message.envelope
        method = BasicGetOk(tag, redelivered, envelope.exchange, envelope.key, queue.ready)
        self._channel.send_content(method, message.header, message.body)

    def _get_again(self, queue: Queue, slot: Slot, *, no_ack: bool) -> None:
        """Goes on with a basic.get whose slot was read; it may have to wait for another one."""
        self.connection.release()
        if not queue.deleted and not queue.consumers and slot.lease is not None:
            queue.manager.give_back(slot)
        if self.closed:
            return
        if queue.deleted:
            self._channel.send(commands.Basic.GetEmpty())
        else:
            self.get(queue, no_ack=no_ack)

    # -- settle -------------------------------------------------------------------------------------------------------

    def ack(self, tag: int, *, multiple: bool) -> None:
        """Settles what the tag names. Raises: ChannelError 406 for an unknown delivery tag."""
        self._settle(self.unacked.take(tag, multiple=multiple))

    def nack(self, tag: int, *, multiple: bool, requeue: bool) -> None:
        """Puts back, or drops, what the tag names. Raises: ChannelError 406 for an unknown delivery tag."""
        deliveries = self.unacked.take(tag, multiple=multiple)
        if requeue:
            self._requeue(deliveries)
        else:
            self._settle(deliveries)

    def recover(self, *, requeue: bool) -> None:
        """Puts back everything unacked. Raises: ConnectionFault 540 for requeue=false, as RabbitMQ."""
        if not requeue:
            raise ConnectionFault(540, "requeue=false")
        self._requeue(self.unacked.take_all())

    def close(self) -> None:
        """Ends the consumers and puts back everything unacked: the channel is gone."""
        self.closed = True
        consumers = list(self.consumers.values())
        self.consumers.clear()
        deliveries = self.unacked.take_all()
        for consumer in consumers:
            consumer.queue.remove_consumer(consumer)
        self._requeue(deliveries)
        for consumer in consumers:
            self._vhost.consumer_left(consumer.queue)

    def _settle(self, deliveries: list[Delivery]) -> None:
        if len(deliveries) == 1:
            queue, slot, index, _ = deliveries[0]
            queue.settle(slot, range(index, index + 1))
        else:
            for queue, slot, indexes in by_slot(deliveries):
                queue.settle(slot, indexes)
        self._credit(deliveries)

    def _requeue(self, deliveries: list[Delivery]) -> None:
        groups: list[tuple[Queue, Slot, list[int] | range]] = by_slot(deliveries)
        self._credit(deliveries)
        for queue, slot, indexes in groups:
            queue.requeue(slot, indexes)

    def _credit(self, deliveries: Iterable[Delivery]) -> None:
        shared = self.prefetch_channel != 0
        for _queue, _slot, _index, consumer in deliveries:
            if consumer is not None:
                consumer.unacked -= 1
                self.outstanding -= 1
                queue = consumer.queue
                if not shared and not queue.awake and queue.manager.ready:
                    queue.wake()
        if shared:
            self.wake()

    def _leave(self, consumer: Consumer) -> None:
        consumer.queue.remove_consumer(consumer)
        self._vhost.consumer_left(consumer.queue)

    def wake(self) -> None:
        """Has the queues of its consumers served: there is room again. The one served last is woken last."""
        consumers = list(self.consumers.values())
        turn = consumers.index(self.last_served) + 1 if self.last_served in consumers else 0
        for consumer in consumers[turn:] + consumers[:turn]:
            consumer.queue.wake()
