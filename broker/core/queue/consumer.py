"""A consumer: one basic.consume on one channel, and how much it can take."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.errors import ChannelError
from broker.core.arguments import amqp_type, type_class
from broker.core.resource import Resource

if TYPE_CHECKING:
    from broker.core.queue.queue import Queue
    from broker.core.session.basic import BasicSession

__all__ = ["UNLIMITED", "Consumer", "consumer_priority"]

_FRAME_HEAD: Final = Struct(">BHI")
_DELIVER: Final = b"\x00\x3c\x00\x3c"  # class 60, method 60
UNLIMITED: Final = 1 << 30
HEADS_MAX: Final = 256  # one head per length of exchange and key; a short string has 256 lengths


class Consumer:
    """Takes messages of one queue as far as its prefetch and its connection allow.

    Units: ``prefetch`` is in messages, 0 for no limit. Of consumers with room those of the highest
        ``priority`` are served. ``parked`` is 0, or a number that is lower the longer its queue has passed it over.
    """

    __slots__ = (
        "_heads",
        "_tag_bytes",
        "arguments",
        "connection",
        "exclusive",
        "no_ack",
        "output_window",
        "parked",
        "prefetch",
        "priority",
        "queue",
        "session",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        tag: str,
        queue: Queue,
        session: BasicSession,
        *,
        no_ack: bool,
        exclusive: bool,
        arguments: dict[str, Any],
        prefetch: int,
        priority: int = 0,
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.session = session
        self.connection = session.connection
        self.output_window = session.output_window
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.prefetch = prefetch
        self.priority = priority
        self.unacked = 0
        self.parked = 0  # else its queue asks it for room again when somebody says that it may have some
        raw = tag.encode()
        self._tag_bytes = bytes((len(raw),)) + raw
        self._heads: dict[int, bytes] = {}

    def room(self) -> int:
        """Return how many messages it can take now; 0 when a prefetch is used up or its client does not read.

        One that does not ack uses up no prefetch, and waits all the same while that of its channel is used up.
        """
        if not self.output_window.has_room():
            return 0
        session = self.session
        if self.no_ack:
            return UNLIMITED if not session.prefetch_channel or session.room() > 0 else 0
        room = self.prefetch - self.unacked if self.prefetch else UNLIMITED
        return min(room, session.room())

    def deliver_head(self, suffix_bytes: int) -> bytes:
        """Return the start of a basic.deliver frame up to the delivery tag, for a suffix of that many bytes.

        Source: AMQP 0-9-1, 4.2.3 (frame) and basic.deliver (60, 60): consumer-tag, delivery-tag, redelivered, exchange,
        routing-key.
        """
        head = self._heads.get(suffix_bytes)
        if head is None:
            size = 4 + len(self._tag_bytes) + 9 + suffix_bytes - 1  # the suffix ends with the frame's end octet
            head = _FRAME_HEAD.pack(1, self.session.number, size) + _DELIVER + self._tag_bytes
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[suffix_bytes] = head
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
