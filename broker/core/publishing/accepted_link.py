"""Overlay links that other brokers open: each connects a channel with the overlay.

The other broker consumes from amq.slotmq.overlay without acks. The consumer's arguments name that broker and the one
that it wants to reach. The first delivery is empty, and its routing key is a random name. Messages that the other
broker publishes to that name through the default exchange are passed to the link without a queue, as in direct
reply-to. The messages of a link have a size limit of their own, so larger packets are split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, Protocol

from broker.amqp.channel import Channel
from broker.amqp.errors import ChannelError, shortened
from broker.amqp.lenient_methods import BasicDeliver
from broker.core.message.message import Envelope
from broker.core.queue.output_window import OutputWindow

LINK_QUEUE: Final = "amq.slotmq.overlay"
LINK_MESSAGE_BYTES: Final = 64 << 10
REPLY_SUCCESS: Final = 200
HEADER: Final = Struct(">HHQH")  # class, weight, body size, flags of a content header
CLASS: Final = 60


class LinkEnd(Protocol):
    """The overlay's end of a link."""

    def take(self, body: bytes) -> None:
        """Handle a message from the other broker."""

    def lost(self) -> None:
        """Handle the end of the link."""


class LinkClosed(ChannelError):
    """A link's channel must be closed. The other broker logs the text, so it has no prefix like PRECONDITION_FAILED."""

    def __init__(self, text: str) -> None:
        super().__init__(406, text)
        self.reply_code, self.reply_text = REPLY_SUCCESS, shortened(text)


class AcceptedLink:
    """Send messages to the other broker, and handle the messages that it publishes to `name`."""

    def __init__(self, channel: Channel, window: OutputWindow, tag: str, name: str) -> None:
        self._channel = channel
        self._window = window
        self._last_tag = 0
        self._end: LinkEnd | None = None
        self.tag = tag
        self.name = name

    @property
    def has_room(self) -> bool:
        """Whether the other broker reads fast enough for more."""
        return self._window.has_room()

    def begin(self, end: LinkEnd) -> None:
        """Pass arriving messages to the overlay from now on."""
        self._end = end

    def end(self) -> None:
        """Notify the overlay that the link has ended."""
        if self._end is not None:
            end, self._end = self._end, None
            end.lost()

    def deliver(self, _envelope: Envelope, _header: bytes, body: bytes) -> None:
        if self._end is not None:
            self._end.take(body)

    def carry(self, body: bytes) -> None:
        self._last_tag += 1
        deliver = BasicDeliver(self.tag, self._last_tag, False, "", self.name)
        self._channel.send_content(deliver, HEADER.pack(CLASS, 0, len(body), 0), body)

    def close(self, text: str) -> None:
        """Close the channel with a reason."""
        self._channel.begin_closing(LinkClosed(text))


LinkAcceptor = Callable[[Mapping[str, Any], AcceptedLink], LinkEnd]
"""A function that returns the overlay's end for the arguments of a basic.consume. Raises: ChannelError 403, 406."""
