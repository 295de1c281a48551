"""The consumers that basic.consume creates, and what the consumers of one channel share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from broker.amqp.codec import content_frames
from broker.amqp.connection import Connection
from broker.amqp.errors import ChannelError
from broker.amqp.framing import LARGE_BYTES
from broker.amqp.wire import FRAME_END_OCTET, FRAME_HEAD
from broker.core.arguments import amqp_type, type_class
from broker.core.message.message import Message
from broker.core.names import Resource
from broker.core.queue.consumer_ring import RingMember
from broker.core.queue.level import Level
from broker.core.queue.output_window import OutputWindow
from broker.core.queue.queue import Queue
from broker.core.queue.unacked import Unacked
from broker.core.statistics.delivery_tally import ChannelDeliveries, DeliveryTally
from broker.slots.slot import Slot

_DELIVER: Final = b"\x00\x3c\x00\x3c"  # class 60, method 60
UNLIMITED: Final = 1 << 30
NO_BODIES: Final = 8  # a frame size without room for a body, so that a consumer appends each message separately
HEADER_MAX_BYTES: Final = 256  # larger headers are not cached
HEADS_MAX: Final = 256  # cached heads, one for each size of an envelope's suffix
_END: Final = b"\xce"
_OVERHEAD_BYTES: Final = 48  # the approximate size of a delivery without exchange, key, header and body
TAGS: Final = 256
"""The size of a block of delivery tags, which differ only in their last octet."""
LAST_OCTETS: Final = [bytes((octet, 0)) for octet in range(TAGS)] * 2
"""The last octet of each tag with the redelivered octet, for two blocks: a batch may reach into the next block."""
LAST_OCTETS_AGAIN: Final = [bytes((octet, 1)) for octet in range(TAGS)] * 2
_FIRST_BLOCK: Final = bytes(7)  # shared by idle channels


class ChannelConsumers:
    """The consumers of one channel, their shared prefetch, and the deliveries that wait for an acknowledgement.

    Units: ``prefetch_consumer`` is the prefetch of each new consumer, ``prefetch_channel`` that of all consumers
        together, as RabbitMQ interprets the global flag of basic.qos. 0 means no limit. ``outstanding`` counts the
        unacked deliveries to consumers, without those of basic.get.
    Invariant: ``sharing`` is set while the channel is queued to be served in the next turn.
    """

    __slots__ = ("_block", "_block_octets", "_content", "_header", "_share", "connection", "consumers", "last_served",
                 "number", "output_window", "outstanding", "prefetch_channel", "prefetch_consumer", "sharing", "tally",
                 "unacked")  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        number: int,
        output_window: OutputWindow,
        share: Callable[[ChannelConsumers], None],
        tally: DeliveryTally,
    ) -> None:
        """`tally` is that of the vhost. `share` schedules a channel, so that its queues are served in the next turn."""
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
        self._header = self._content = b""  # the last short header, and the result of `content_start` for it
        self._block = 0  # the block of delivery tags whose octets are cached
        self._block_octets = _FIRST_BLOCK

    def room(self) -> int:
        """Return how many more deliveries the channel's shared prefetch allows, 0 or less if it is used up."""
        return self.prefetch_channel - self.outstanding if self.prefetch_channel else UNLIMITED

    def content_start(self, header: bytes, body_bytes: int) -> bytes:
        """Return the frame of a content header and the head of the body's frame. The result for the last short header
        is cached, because consecutive messages often share one header object.
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
        """Return the octets that all delivery tags of a block share. The last result is cached, because consecutive
        deliveries have consecutive tags.
        """
        if block != self._block:
            self._block = block
            self._block_octets = block.to_bytes(7, "big")
        return self._block_octets

    def queues(self) -> Iterable[Queue]:
        """Return the queues of the consumers, each once."""
        return dict.fromkeys([consumer.queue for consumer in self.consumers.values()])

    def wake(self) -> None:
        """Schedule the queues of the consumers, because there is room again. A shared prefetch is distributed in the
        next turn, before other deliveries; otherwise the first queue could use it up.
        """
        if not self.prefetch_channel:
            for queue in self.take_turns():
                queue.wake()
        elif not self.sharing:
            self.sharing = True
            self._share(self)

    def take_turns(self) -> list[Queue]:
        """Unpark the consumers, and return their queues in the order of their turns: the consumer that was served last
        has the last turn. Consumers of one queue are unparked in the order in which they were parked.
        Cost: O(consumers), and a sort of the parked ones.
        """
        self.sharing = False
        consumers = list(self.consumers.values())
        parked = [consumer for consumer in consumers if consumer.parked]
        for consumer in sorted(parked, key=lambda consumer: consumer.parked):
            consumer.queue.consumers.unpark(consumer)
        turn = consumers.index(self.last_served) + 1 if self.last_served in consumers else 0
        return [consumer.queue for consumer in consumers[turn:] + consumers[:turn]]

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Remove a consumer that the broker has cancelled, and notify the client if it supports that."""
        raise NotImplementedError

    def expel(self, consumer: Consumer) -> None:
        """Cancel a consumer on the broker's initiative, and notify the client if it supports that."""
        raise NotImplementedError

    def time_out(self, consumer: Consumer, upto: int) -> int:
        """Cancel a consumer, requeue its messages with tags up to `upto`, and return their number."""
        raise NotImplementedError


class Consumer(RingMember):
    """Deliver messages of one queue to a client, within the limits of the prefetch and the connection.

    Units: ``prefetch`` is in messages, 0 for no limit. ``timeout_ms`` is how long the client may leave a message
        unacked: 0 means no limit, and None means the queue's limit.
    """

    __slots__ = ("_head", "_heads", "_shut", "_suffix_bytes", "_tag_bytes", "arguments", "connection", "no_ack",
                 "output_window", "prefetch", "queue", "session", "timeout_ms")  # fmt: skip

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
        timeout_ms: int | None = None,
    ) -> None:
        super().__init__(tag, priority=priority, exclusive=exclusive)
        # Compiled code lays attributes out in this order. Those used for every delivery share few cache lines.
        self.session = session
        self.connection = session.connection
        self.output_window = session.output_window
        self.no_ack = no_ack
        self.prefetch = prefetch
        self._suffix_bytes = -1  # the last argument of `deliver_head`; `_head` is its result
        self._head = b""
        raw = tag.encode()
        self._tag_bytes = bytes((len(raw),)) + raw
        self._heads: dict[int, bytes] = {}
        self.queue = queue
        self.arguments = arguments
        self.timeout_ms = timeout_ms
        self._shut = 0  # the number of calls of `shut` that `open` has not undone

    @property
    def takes_replies(self) -> bool:
        """Whether the client probably receives replies to its requests: it consumes a private queue without acks."""
        return self.no_ack and (self.queue.auto_delete or self.queue.exclusive_owner is not None)

    @property
    def timeout_in_force_ms(self) -> int:
        """How long the client may leave a message unacked, 0 for no limit."""
        return (self.queue.rules.consumer_timeout_ms or 0) if self.timeout_ms is None else self.timeout_ms

    def shut(self) -> None:
        """Deliver nothing until `open` has undone this call and all others."""
        if not self._shut:
            self.output_window = OutputWindow(self.connection)
            self.output_window.pause()
        self._shut += 1

    def open(self) -> None:
        """Undo one call of `shut`; deliver again if it was the last one left."""
        self._shut -= 1
        if self._shut:
            return
        session, queue = self.session, self.queue
        self.output_window = session.output_window
        if session.prefetch_channel:
            session.wake()
            return
        if self.parked:
            queue.consumers.unpark(self)
        queue.wake()

    def set_prefetch(self, prefetch: int) -> None:
        self.prefetch = prefetch

    def room(self) -> int:
        """Return how many messages may be delivered now; 0 or less means none.

        A consumer without acks does not use up a prefetch, but waits while the channel's prefetch is used up.
        """
        window = self.output_window
        if not (window.writable and self.connection.out_bytes < window.high_water_bytes) and not window.has_room():
            return 0
        session = self.session
        shared = session.prefetch_channel - session.outstanding if session.prefetch_channel else UNLIMITED
        if self.no_ack:
            return UNLIMITED if shared > 0 else 0
        room = self.prefetch - self.unacked if self.prefetch else UNLIMITED
        return min(room, shared)

    def share(self) -> int:
        """Return an equal share of the channel's prefetch, or 0 if there is none or the output has no room."""
        session = self.session
        if not session.prefetch_channel or not self.output_window.has_room():
            return 0
        return max(1, session.prefetch_channel // max(1, len(session.consumers)))

    def deliver_head(self, suffix_bytes: int) -> bytes:
        """Return the start of a basic.deliver frame, up to the delivery tag, given the size of the envelope's suffix.

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

    def deliver_one(self, level: Level, slot: Slot, index: int) -> None:
        """Deliver a message for the first time. It was taken from its slot, and there is room for it. HOT."""
        session = self.session
        unacked = session.unacked
        contents = slot.contents
        assert contents is not None
        message: Message = contents[index]
        tag = unacked.last_tag + 1
        self.append(message, message.header, tag, LAST_OCTETS, slot.first + index)
        session.tally.delivered(level.tally, 1, 0, self.no_ack)
        if self.no_ack:
            unacked.last_tag = tag  # hot: set directly
            level.settle_one(slot, index)
        else:
            unacked.handed_out_one(level, slot, index, self)
            self.unacked += 1
            session.outstanding += 1  # hot: set directly
        session.last_served = self  # hot: set directly
        self.output_window.last_served = session.number  # hot: set directly
        self.connection.touch()

    def append(self, message: Message, header: bytes, tag: int, octets: list[bytes], message_id: int) -> int:
        """Append the delivery of one message of any size to the output, and return the size of its large pieces."""
        connection = self.connection
        session = self.session
        frame_max = connection.frame_max
        suffix = message.envelope.suffix
        body = message.body
        out = connection.out
        head = self.deliver_head(len(suffix))
        block = session.block_octets(tag // TAGS)
        octet = octets[tag % TAGS]
        if 0 < len(body) < LARGE_BYTES and (not frame_max or len(body) <= frame_max - 8):
            content = session.content_start(header, len(body))
            out.append(head)  # one by one, because another list or tuple per message would cost more
            out.append(block)
            out.append(octet)
            out.append(suffix)
            out.append(content)
            out.append(body)
            out.append(_END)
            connection.out_bytes += len(suffix) + len(header) + len(body) + _OVERHEAD_BYTES  # hot: set directly
            return 0
        out += (head, block, octet, suffix)
        out_bytes = len(suffix) + _OVERHEAD_BYTES
        large_bytes = 0
        for piece in content_frames(session.number, header, body, frame_max):
            if len(piece) >= LARGE_BYTES:
                connection.large_at.append(len(out))
                large_bytes += len(piece)
            out.append(piece)
            out_bytes += len(piece)
        connection.out_bytes += out_bytes  # hot: set directly
        return large_bytes

    def cancelled_by_broker(self) -> None:
        self.session.consumer_cancelled(self)


def consumer_priority(resource: Resource, arguments: Mapping[str, Any]) -> int:
    """Return the priority that a consumer requests, or 0 if it requests none.

    Raises: ChannelError 406 if it is not an integer, or if x-stream-offset is set.
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


def consumer_timeout_ms(resource: Resource, arguments: Mapping[str, Any]) -> int | None:
    """Return the consumer timeout that a consumer requests, or None if it requests none.

    Raises: ChannelError 406 unless it is a natural number.
    Source: RabbitMQ 4.3, rabbit_amqqueue:check_consume_arguments.
    """
    if "x-consumer-timeout" not in arguments:
        return None
    timeout = arguments["x-consumer-timeout"]
    reason = f'"expected integer, got {amqp_type(timeout)}"' if type_class(timeout) != "int" else ""
    if not reason and timeout < 0:
        reason = f"{{value_negative,{timeout}}}"
    if reason:
        raise ChannelError(406, f"invalid arg 'x-consumer-timeout' for {resource}: {reason}")
    return int(timeout)
