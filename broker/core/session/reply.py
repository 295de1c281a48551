"""Direct reply-to on one channel: consuming from amq.rabbitmq.reply-to, and asking whether a consumer still exists.

Order of checks and texts: RabbitMQ 4.3, rabbit_channel.
"""

from __future__ import annotations

from pamqp import commands

from broker.amqp.channel import Channel
from broker.amqp.errors import ChannelError, ConnectionFault
from broker.amqp.lenient_methods import QueueDeclareOk
from broker.core.names import strip_name
from broker.core.publishing.reply_to import ReplyConsumer
from broker.core.session.basic import BasicSession
from broker.core.session.detailed_publisher import DetailedPublisher
from broker.core.vhost import Vhost


class ReplySession:
    """Manage the single reply consumer of a channel, whose name its publisher puts into messages."""

    def __init__(self, channel: Channel, vhost: Vhost, basic: BasicSession, publisher: DetailedPublisher) -> None:
        self._channel = channel
        self._vhost = vhost
        self._basic = basic
        self._publisher = publisher

    def consume(self, method: commands.Basic.Consume) -> None:
        """Start the reply consumer. It reads no queue, so no right is checked, as in RabbitMQ.

        Raises: ChannelError 406 with acks, or when there is one; ConnectionFault 530 for a consumer tag in use.
        """
        if method.consumer_tag in self._basic.consumers:
            raise ConnectionFault(530, f"attempt to reuse consumer tag '{method.consumer_tag}'")
        if not method.no_ack:
            raise ChannelError(406, "reply consumer cannot acknowledge")
        if self._publisher.replies is not None:
            raise ChannelError(406, "reply consumer already set")
        vhost = self._vhost
        tag = method.consumer_tag or vhost.new_name("amq.ctag-")
        name = vhost.replies.new_name(vhost.new_name)
        consumer = ReplyConsumer(tag, name, self._channel, self._basic.unacked)
        vhost.replies[name] = consumer
        self._publisher.take_replies(consumer)
        if not method.nowait:
            self._channel.send(commands.Basic.ConsumeOk(tag))

    def cancel(self, method: commands.Basic.Cancel) -> bool:
        """End the reply consumer if the tag is its own, and return whether it was."""
        consumer = self._publisher.replies
        if consumer is None or consumer.tag != method.consumer_tag:
            return False
        self.close()
        if not method.nowait:
            self._channel.send(commands.Basic.CancelOk(consumer.tag))
        return True

    def declare(self, method: commands.Queue.Declare) -> None:
        """Return whether a reply consumer has this name, regardless of the declare's other fields.

        Raises: ChannelError 404.
        """
        name = strip_name(method.queue)
        if not self._vhost.replies.living(name):
            raise ChannelError(404, f"no {self._vhost.queue_resource(name)}")
        if not method.nowait:
            self._channel.send(QueueDeclareOk(name, 0, 1))

    def close(self) -> None:
        """End the reply consumer, because the channel is closed or the client cancelled it."""
        consumer = self._publisher.replies
        if consumer is not None:
            self._publisher.take_replies(None)
            del self._vhost.replies[consumer.name]
