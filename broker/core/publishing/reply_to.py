"""Direct reply-to: replies are sent to the channel that published the request, without a queue.

A channel consumes from `amq.rabbitmq.reply-to`. In the property reply_to of messages that it publishes, this name is
replaced by one that is unique to the channel. A message published to that name through the default exchange is
delivered to the channel. Source: RabbitMQ, "Direct Reply-to".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.amqp.channel import Channel
from broker.amqp.lenient_methods import BasicDeliver
from broker.core.message.message import Envelope
from broker.core.queue.unacked import Unacked

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = DIRECT_REPLY_TO + "."


class ReplyTarget(Protocol):
    """The receiver of replies."""

    def deliver(self, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Send one reply."""


class ReplyConsumer:
    """Deliver replies to one channel. No queue stores them: a reply is delivered when it is published, or not at all.
    As in RabbitMQ, a client that reads slowly loses no reply.

    Shapes: `name` is random, so that no other client can guess it.
    """

    def __init__(self, tag: str, name: str, channel: Channel, unacked: Unacked) -> None:
        self.tag = tag
        self.name = name
        self._channel = channel
        self._unacked = unacked

    def deliver(self, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Send one reply, with the channel's next delivery tag."""
        tag = self._unacked.skip_tag()
        deliver = BasicDeliver(self.tag, tag, False, envelope.exchange, envelope.key)
        self._channel.send_content(deliver, header, body)


class ReplyConsumers(dict[str, ReplyTarget]):
    """The reply consumers of one vhost, by name."""

    def new_name(self, new_name: Callable[[str], str]) -> str:
        """Return a name that no client can guess; `new_name` appends random characters."""
        return new_name(new_name(REPLY_PREFIX) + ".")

    def find(self, name: str) -> ReplyTarget | None:
        """Return the reply consumer with a name, which in a cluster may be on another node, or None."""
        return self.get(name)

    def exists(self, name: str) -> bool:
        """Return whether a name is that of a reply consumer; the common name DIRECT_REPLY_TO always exists."""
        return name == DIRECT_REPLY_TO or self.find(name) is not None
