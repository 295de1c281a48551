"""The broker's side of one channel: takes each decoded method to the session of its class (street step 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pamqp import commands

from broker.amqp.errors import ConnectionFault
from broker.core.session.basic import BasicSession
from broker.core.session.confirm import ConfirmSession
from broker.core.session.exchange import ExchangeSession
from broker.core.session.publisher import Publisher
from broker.core.session.queue import QueueSession
from broker.core.vhost import Vhost

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.session.connection import SessionOfConnection

__all__ = ["SessionOfChannel"]

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"


class SessionOfChannel:
    """Is what a channel is to the broker: one object per AMQP class.

    Invariant: `publish` is the publisher's own method, so a publish costs no second call.
    """

    __slots__ = ("basic", "channel", "confirms", "exchanges", "publish", "publisher", "queues")

    def __init__(self, channel: Channel, session: SessionOfConnection, vhost: Vhost) -> None:
        self.channel = channel
        self.exchanges = ExchangeSession(channel, session, vhost)
        self.queues = QueueSession(channel, session, vhost)
        self.basic = BasicSession(channel, session, vhost)
        self.publisher = Publisher(channel, session, vhost)
        self.confirms = ConfirmSession(channel, self.publisher)
        self.publish: Callable[[bytes, bytes, bytes], None] = self.publisher.publish

    def method(self, method: Any) -> None:
        """Does what a method asks, every method but basic.publish and those of opening and closing.

        Raises: what its class raises; 503 for a method that only a server may send.
        """
        act = METHODS.get(type(method))
        if act is None:
            raise ConnectionFault(503, "unimplemented method")
        act(self, method)

    def close(self) -> None:
        """Ends the channel's consumers and puts back what they had not settled."""
        self.publisher.closed = True
        self.basic.close()

    def flow(self, method: commands.Channel.Flow) -> None:
        """Answers that deliveries flow, which they always do.

        Raises: 540 when asked to stop them, as RabbitMQ.
        """
        if not method.active:
            raise ConnectionFault(540, "active=false")
        self.channel.send(commands.Channel.FlowOk(active=True))

    def consume(self, method: commands.Basic.Consume) -> None:
        """Starts a consumer on the queue that is meant.

        Raises: 540 for RabbitMQ's direct reply-to, which is not built yet.
        """
        if method.queue == DIRECT_REPLY_TO:
            raise ConnectionFault(540, f"consuming from '{DIRECT_REPLY_TO}'")
        self.basic.consume(method, self.queues.find(method.queue, "read"))

    def get(self, method: commands.Basic.Get) -> None:
        """Fetches one message of the queue that is meant."""
        self.basic.get(self.queues.find(method.queue, "read"), no_ack=method.no_ack)

    def recover(self, method: commands.Basic.Recover) -> None:
        """Puts back everything unacked and says so."""
        self.basic.recover(requeue=method.requeue)
        self.channel.send(commands.Basic.RecoverOk())

    def refuse(self, method: Any) -> NoReturn:
        """Refuses what is not built yet: a client that counts on it must not be told that it has it.

        Raises: 540.
        """
        raise ConnectionFault(540, method.name.lower())


METHODS: Final[dict[type, Callable[[SessionOfChannel, Any], None]]] = {
    commands.Channel.Flow: SessionOfChannel.flow,
    commands.Exchange.Declare: lambda session, method: session.exchanges.declare(method),
    commands.Exchange.Delete: lambda session, method: session.exchanges.delete(method),
    commands.Queue.Declare: lambda session, method: session.queues.declare(method),
    commands.Queue.Bind: lambda session, method: session.queues.bind(method),
    commands.Queue.Unbind: lambda session, method: session.queues.unbind(method),
    commands.Queue.Purge: lambda session, method: session.queues.purge(method),
    commands.Queue.Delete: lambda session, method: session.queues.delete(method),
    commands.Basic.Qos: lambda session, method: session.basic.qos(method),
    commands.Basic.Consume: SessionOfChannel.consume,
    commands.Basic.Cancel: lambda session, method: session.basic.cancel(method),
    commands.Basic.Get: SessionOfChannel.get,
    commands.Basic.Ack: lambda session, m: session.basic.ack(m.delivery_tag, multiple=m.multiple),
    commands.Basic.Nack: lambda session, m: session.basic.nack(m.delivery_tag, multiple=m.multiple, requeue=m.requeue),
    commands.Basic.Reject: lambda session, m: session.basic.nack(m.delivery_tag, multiple=False, requeue=m.requeue),
    commands.Basic.Recover: SessionOfChannel.recover,
    commands.Basic.RecoverAsync: lambda session, method: session.basic.recover(requeue=method.requeue),
    commands.Confirm.Select: lambda session, method: session.confirms.select(method),
    commands.Exchange.Bind: SessionOfChannel.refuse,
    commands.Exchange.Unbind: SessionOfChannel.refuse,
    commands.Tx.Select: SessionOfChannel.refuse,
    commands.Tx.Commit: SessionOfChannel.refuse,
    commands.Tx.Rollback: SessionOfChannel.refuse,
}
