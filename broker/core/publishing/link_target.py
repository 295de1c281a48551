"""Links of the overlay that other brokers opened: what the overlay and a channel see of each other.

The other broker consumes from amq.slotmq.overlay without acknowledging, and names itself and the broker that it wants
in the arguments. It gets a first, empty message, whose routing key is a random name. What it publishes to that name
through the default exchange reaches the link without a queue, as an answer reaches its requester. The messages of a
link have a limit of their own in both directions; what is longer is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.amqp.errors import ChannelError, shortened
from broker.amqp.lenient_methods import BasicDeliver

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.message.message import Envelope
    from broker.core.queue.output_window import OutputWindow

__all__ = ["LINK_MESSAGE_BYTES", "LINK_QUEUE", "AcceptedLink", "LinkAcceptor", "LinkTarget"]

LINK_QUEUE: Final = "amq.slotmq.overlay"
LINK_MESSAGE_BYTES: Final = 64 << 10
REPLY_SUCCESS: Final = 200


class AcceptedLink(Protocol):
    """A link of another broker, as the overlay sees it."""

    def received(self, body: bytes) -> None:
        """Take a message."""

    def lost(self) -> None:
        """Note that the channel was closed."""


class LinkAcceptor(Protocol):
    """Decides which brokers may link."""

    def accept(self, arguments: Mapping[str, Any], target: LinkTarget) -> AcceptedLink:
        """Return the link for the arguments of a basic.consume. Raises: ChannelError 403, 406."""


class LinkClosed(ChannelError):
    """Closes the channel of a link. The text has no name of an error in front: the other broker logs it as it is."""

    def __init__(self, text: str) -> None:
        super().__init__(406, text)
        self.reply_code, self.reply_text = REPLY_SUCCESS, shortened(text)


class LinkTarget:
    """Sends messages to the broker at the other end, and takes those that it sends."""

    __slots__ = ("_channel", "_last_tag", "_link", "_tag", "_window", "name", "user")

    def __init__(self, channel: Channel, window: OutputWindow, user: str, tag: str, name: str) -> None:
        """`user` is the one that the other broker logged in as; it publishes to `name`."""
        self._channel = channel
        self._window = window
        self._tag = tag
        self._last_tag = 0
        self._link: AcceptedLink | None = None
        self.user = user
        self.name = name

    @property
    def has_room(self) -> bool:
        """Whether the other broker reads fast enough for more."""
        return self._window.has_room()

    def begin(self, link: AcceptedLink) -> None:
        """Give the link what arrives from now on."""
        self._link = link

    def end(self) -> None:
        """Tell the link that the channel is closed."""
        if self._link is not None:
            link, self._link = self._link, None
            link.lost()

    def deliver(self, _envelope: Envelope, _header: bytes, body: bytes) -> None:
        """Take a message of the other broker."""
        if self._link is not None:
            self._link.received(body)

    def send(self, header: bytes, body: bytes) -> None:
        """Send a message."""
        self._last_tag += 1
        deliver = BasicDeliver(self._tag, self._last_tag, False, "", self.name)
        self._channel.send_content(deliver, header, body)

    def close(self, text: str) -> None:
        """Close the channel and say why: the link ends, or the overlay refuses what the other broker said."""
        self._channel.begin_closing(LinkClosed(text))
