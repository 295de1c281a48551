"""Direct reply-to: RPC answers that go straight to the channel that sent the request, without a queue.

A channel consumes from ``amq.rabbitmq.reply-to``. In the reply-to of its messages this name is replaced by one unique
to the channel. A publish to that name through the default exchange reaches the channel.
Source: RabbitMQ, "Direct Reply-to".
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
    """The receiver of answers."""

    def deliver(self, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Send one answer."""


class ReplyConsumer:
    """Receive the answers for one channel and write them to its connection. Its messages are never in a slot: no queue
    stores them, and no client could fetch them again. So an answer is delivered when it is published or not at all.
    Nothing is dropped at high water, as in RabbitMQ: a slow client has as many answers waiting as it has open requests,
    and the memory alarm bounds a client that keeps sending requests.
    Shapes: ``name`` is random, so that no other client can guess it.
    """

    def __init__(self, tag: str, name: str, channel: Channel, unacked: Unacked) -> None:
        self.tag = tag
        self.name = name
        self._channel = channel
        self._unacked = unacked

    def deliver(self, envelope: Envelope, header: bytes, body: bytes) -> None:
        """Send one answer. It uses up a delivery tag, like every delivery that needs no ack."""
        tag = self._unacked.skip_tag()
        deliver = BasicDeliver(self.tag, tag, False, envelope.exchange, envelope.key)
        self._channel.send_content(deliver, header, body)


class ReplyConsumers(dict[str, ReplyTarget]):
    """Hold the reply consumers of one vhost, by name."""

    def new_name(self, new_name: Callable[[str], str]) -> str:
        """Return a name that no client can guess; `new_name` appends random characters."""
        return new_name(new_name(REPLY_PREFIX) + ".")

    def find(self, name: str) -> ReplyTarget | None:
        """Return the reply consumer with a name, None if there is none."""
        return self.get(name)

    def living(self, name: str) -> bool:
        """Return whether a channel waits for answers under a name; the common name always counts as one."""
        return name == DIRECT_REPLY_TO or self.find(name) is not None
