"""A link of another broker of the overlay on one channel: consuming from amq.slotmq.overlay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pamqp import commands

from broker.amqp.errors import ChannelError
from broker.core.publishing.link_target import LINK_MESSAGE_BYTES, LINK_QUEUE, LinkTarget

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.session.client import SessionClient
    from broker.core.vhost import Vhost

__all__ = ["LinkSession"]

EMPTY_HEADER: Final = b"\0\x3c" + bytes(12)  # class, weight, body size, flags


class LinkSession:
    """Manages the only link of a channel."""

    __slots__ = ("_channel", "_session", "_tag", "_target", "_vhost")

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        self._channel = channel
        self._session = session
        self._vhost = vhost
        self._tag = ""
        self._target: LinkTarget | None = None

    def consume(self, method: commands.Basic.Consume) -> None:
        """Open a link.

        Raises: ChannelError 403 without the right to read the name, and for a broker that is no neighbour; 406 with
            acks, or when the channel has a link already.
        """
        vhost = self._vhost
        resource = vhost.queue_resource(LINK_QUEUE)
        self._session.check(resource, "read")
        if vhost.links is None:
            raise ChannelError(403, f"access to {resource} refused: this broker takes no part in an overlay")
        if not method.no_ack:
            raise ChannelError(406, f"{resource} cannot be acknowledged")
        if self._target is not None:
            raise ChannelError(406, "this channel has a link already")
        tag = method.consumer_tag or vhost.new_name("amq.ctag-")
        user = self._session.user
        assert user is not None
        name = vhost.replies.new_name(vhost.new_name)
        target = LinkTarget(self._channel, self._session.output_window, user.name, tag, name)
        target.begin(vhost.links.accept(dict(method.arguments or {}), target))
        self._channel.limit_messages(LINK_MESSAGE_BYTES)
        self._tag, self._target = tag, target
        vhost.replies[target.name] = target
        if not method.nowait:
            self._channel.send(commands.Basic.ConsumeOk(tag))
        target.send(EMPTY_HEADER, b"")

    def cancel(self, method: commands.Basic.Cancel) -> bool:
        """End the link if the tag is its own, and return whether it was."""
        if self._target is None or method.consumer_tag != self._tag:
            return False
        self.close()
        if not method.nowait:
            self._channel.send(commands.Basic.CancelOk(self._tag))
        return True

    def close(self) -> None:
        """End the link: the channel is closed, or the other broker cancelled."""
        target, self._target = self._target, None
        if target is not None:
            del self._vhost.replies[target.name]
            target.end()
