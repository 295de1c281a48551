"""Direct reply-to: RPC answers that go straight to the channel that asked, without a queue.

A channel consumes from ``amq.rabbitmq.reply-to``; that name in the reply-to of what it publishes becomes a name of its
own, and who publishes to that name through the default exchange reaches it.
Source: RabbitMQ, "Direct Reply-to".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.amqp.codec import BasicDeliver

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.message.message import Envelope
    from broker.core.queue.unacked import Unacked

__all__ = ["DIRECT_REPLY_TO", "REPLY_PREFIX", "ReplyConsumer", "ReplyConsumers"]

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_PREFIX: Final = DIRECT_REPLY_TO + "."


class ReplyConsumer:
    """Takes the answers for one channel and writes them to its connection.

    It is the one consumer that gets messages which were never in a slot: there is no queue to keep them in, nobody
    could ask for them again, and a client that is gone is no longer owed an answer. So an answer is delivered when it
    is published or not at all. Nothing is dropped at high water, as RabbitMQ drops nothing: a client that reads slowly
    has as many answers waiting as it has questions open, and the memory alarm bounds one that does not stop asking.
    Shapes: ``name`` is random, so that nobody answers who was not asked.
    """

    __slots__ = ("_channel", "_unacked", "name", "tag")

    def __init__(self, tag: str, name: str, channel: Channel, unacked: Unacked) -> None:
        self.tag = tag
        self.name = name
        self._channel = channel
        self._unacked = unacked

    def deliver(self, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Send one answer. It takes a delivery tag like any delivery that needs no ack."""
        tag = self._unacked.skip_tag()
        deliver = BasicDeliver(self.tag, tag, False, envelope.exchange, envelope.key)
        self._channel.send_content(deliver, header, body)


class ReplyConsumers(dict[str, ReplyConsumer]):
    """Holds the reply consumers of one vhost by their names."""

    __slots__ = ()

    def living(self, name: str) -> bool:
        """Return whether somebody waits for answers under a name; under the name that stands for all, always."""
        return name == DIRECT_REPLY_TO or name in self
