"""Consumers: one basic.consume each, and all of one channel with the prefetch that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.errors import ChannelError
from broker.amqp.wire import FRAME_END_OCTET, FRAME_HEAD
from broker.core.arguments import amqp_type, type_class
from broker.core.queue.consumer_ring import RingMember
from broker.core.queue.output_window import OutputWindow
from broker.core.queue.unacked import Unacked
from broker.core.resource import Resource
from broker.core.statistics.delivery_tally import ChannelDeliveries, DeliveryTally

if TYPE_CHECKING:
    from broker.amqp.connection import Connection
    from broker.core.queue.queue import Queue

__all__ = ["UNLIMITED", "ChannelConsumers", "Consumer", "consumer_priority"]

_DELIVER: Final = b"\x00\x3c\x00\x3c"  # class 60, method 60
UNLIMITED: Final = 1 << 30
HEADER_MAX_BYTES: Final = 256  # of a header that is kept for the next delivery
HEADS_MAX: Final = 256  # one head per length of exchange and key; a short string has 256 lengths
_FIRST_BLOCK: Final = bytes(7)  # of delivery tags; idle channels share it


class ChannelConsumers:
    """The consumers of one channel, their shared prefetch, and the deliveries that wait for an acknowledgement.

    Units: ``prefetch_consumer`` is given to consumers that start later, ``prefetch_channel`` is shared by all of them
        (RabbitMQ's reading of basic.qos: global=false is per consumer). 0 means no limit. ``outstanding`` counts the
        unacked deliveries to consumers, without those of basic.get.
    Invariant: ``sharing`` is set while the channel waits to be served in the next turn.
    """

    __slots__ = (
        "_block",
        "_block_octets",
        "_content",
        "_header",
        "_share",
        "connection",
        "consumers",
        "last_served",
        "number",
        "output_window",
        "outstanding",
        "prefetch_channel",
        "prefetch_consumer",
        "sharing",
        "tally",
        "unacked",
    )

    def __init__(
        self,
        connection: Connection,
        number: int,
        output_window: OutputWindow,
        share: Callable[[ChannelConsumers], None],
        tally: DeliveryTally,
    ) -> None:
        """Take the channel's number; `share` serves the queues of a channel in the next turn.

        `tally` is that of the vhost.
        """
        self._share = share
        self.connection = connection
        self.output_window = output_window
        self.number = number
        self.consumers: dict[str, Consumer] = {}
        self.last_served: Consumer | None = None
        self.unacked = Unacked()
        self.tally = ChannelDeliveries(tally)
        self.outstanding = 0
        self.prefetch_consumer = 0
        self.prefetch_channel = 0
        self.sharing = False
        self._header = self._content = b""  # of the last delivery that was written alone
        self._block = 0  # of delivery tags
        self._block_octets = _FIRST_BLOCK

    def room(self) -> int:
        """Return how many more deliveries the channel's shared prefetch allows."""
        return self.prefetch_channel - self.outstanding if self.prefetch_channel else UNLIMITED

    def content_start(self, header: bytes, body_bytes: int) -> bytes:
        """Return the frame of a content header, which has the size of its body, and the head of the body's frame.

        Messages with equal properties share their header, in whatever queues they are.
        """
        if header is self._header:
            return self._content
        number = self.number
        content = b"".join(
            (FRAME_HEAD.pack(2, number, len(header)), header, FRAME_END_OCTET, FRAME_HEAD.pack(3, number, body_bytes))
        )
        if len(header) <= HEADER_MAX_BYTES:
            self._header, self._content = header, content
        return content

    def block_octets(self, block: int) -> bytes:
        """Return the delivery tags of a block but for their last octet: the number of the block.

        The deliveries of a turn have consecutive tags, from whatever queues they come.
        """
        if block != self._block:
            self._block = block
            self._block_octets = block.to_bytes(7, "big")
        return self._block_octets

    def queues(self) -> Iterable[Queue]:
        """Return the queues of the consumers, each once."""
        return dict.fromkeys([consumer.queue for consumer in self.consumers.values()])

    def wake(self) -> None:
        """Serve the queues of the consumers: there is room again.

        Shared room is dealt out in the next turn, before anything else is delivered: the first queue that is served
        could use it up.
        """
        if not self.prefetch_channel:
            for queue in self.take_turns():
                queue.wake()
        elif not self.sharing:
            self.sharing = True
            self._share(self)

    def take_turns(self) -> list[Queue]:
        """Unpark the consumers and return their queues in the order of their turns.

        The consumer that was served last comes last; of those of one queue, the one that has waited longest comes
        first.
        Cost: O(consumers).
        """
        self.sharing = False
        consumers = list(self.consumers.values())
        parked = [consumer for consumer in consumers if consumer.parked]
        for consumer in sorted(parked, key=lambda consumer: consumer.parked):
            consumer.queue.consumers.unpark(consumer)
        turn = consumers.index(self.last_served) + 1 if self.last_served in consumers else 0
        return [consumer.queue for consumer in consumers[turn:] + consumers[:turn]]

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Drop a consumer whose queue was deleted and tell a client that understands it."""
        raise NotImplementedError


class Consumer(RingMember):
    """Takes messages of one queue as far as its prefetch and its connection allow.

    Units: ``prefetch`` is in messages, 0 for no limit.
    """

    __slots__ = (
        "_head",
        "_heads",
        "_suffix_bytes",
        "_tag_bytes",
        "arguments",
        "connection",
        "no_ack",
        "output_window",
        "prefetch",
        "queue",
        "session",
    )

    def __init__(
        self,
        tag: str,
        queue: Queue,
        session: ChannelConsumers,
        *,
        no_ack: bool,
        exclusive: bool,
        arguments: dict[str, Any],
        prefetch: int,
        priority: int = 0,
    ) -> None:
        super().__init__(tag, priority=priority, exclusive=exclusive)
        # What every message reads comes first, so that it lies in few cache lines.
        self.session = session
        self.connection = session.connection
        self.output_window = session.output_window
        self.no_ack = no_ack
        self.prefetch = prefetch
        self._suffix_bytes = -1  # of the last delivery
        self._head = b""
        raw = tag.encode()
        self._tag_bytes = bytes((len(raw),)) + raw
        self._heads: dict[int, bytes] = {}
        self.queue = queue
        self.arguments = arguments

    def shut(self) -> None:
        """Take no message before `open`, because the answer to the client's basic.consume is not sent yet."""
        self.output_window = OutputWindow(self.connection)
        self.output_window.pause()

    def open(self) -> None:
        """Take messages, and those that wait."""
        session, queue = self.session, self.queue
        self.output_window = session.output_window
        if session.prefetch_channel:
            session.wake()
            return
        if self.parked:
            queue.consumers.unpark(self)
        queue.wake()

    def set_prefetch(self, prefetch: int) -> None:
        """Take another prefetch."""
        self.prefetch = prefetch

    def room(self) -> int:
        """Return how many messages it can take now; 0 when a prefetch is used up or its client does not read.

        A consumer without acks uses up no prefetch; it waits all the same while that of its channel is used up.
        """
        if not self.output_window.has_room():
            return 0
        session = self.session
        if self.no_ack:
            return UNLIMITED if not session.prefetch_channel or session.room() > 0 else 0
        room = self.prefetch - self.unacked if self.prefetch else UNLIMITED
        return min(room, session.room())

    def share(self) -> int:
        """Return its part of the prefetch of its channel, 0 if that is not shared or its client does not read."""
        session = self.session
        if not session.prefetch_channel or not self.output_window.has_room():
            return 0
        return max(1, session.prefetch_channel // max(1, len(session.consumers)))

    def deliver_head(self, suffix_bytes: int) -> bytes:
        """Return the start of a basic.deliver frame up to the delivery tag, for a suffix of that many bytes.

        Source: AMQP 0-9-1, 4.2.3 (frame) and basic.deliver (60, 60): consumer-tag, delivery-tag, redelivered, exchange,
        routing-key.
        """
        if suffix_bytes == self._suffix_bytes:
            return self._head
        head = self._heads.get(suffix_bytes)
        if head is None:
            size = 4 + len(self._tag_bytes) + 9 + suffix_bytes - 1  # the suffix ends with the frame's end octet
            head = FRAME_HEAD.pack(1, self.session.number, size) + _DELIVER + self._tag_bytes
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[suffix_bytes] = head
        self._suffix_bytes = suffix_bytes
        self._head = head
        return head

    def cancelled_by_broker(self) -> None:
        """Tell the client that its queue is gone (consumer_cancel_notify)."""
        self.session.consumer_cancelled(self)


def consumer_priority(resource: Resource, arguments: Mapping[str, Any]) -> int:
    """Return the priority that a consumer asks for, 0 when it does not.

    Raises: ChannelError 406 when it is no integer, or for a stream's argument.
    Source: RabbitMQ, rabbit_amqqueue:check_consume_arguments.
    """
    if "x-stream-offset" in arguments:
        raise ChannelError(406, f"invalid arg 'x-stream-offset' for {resource} of queue type rabbit_classic_queue")
    priority = arguments.get("x-priority", 0)
    if type_class(priority) != "int":
        raise ChannelError(
            406, f"invalid arg 'x-priority' for {resource}: \"expected integer, got {amqp_type(priority)}\""
        )
    return int(priority)
