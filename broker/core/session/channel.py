"""The broker's side of one channel, which passes each decoded method to the session of its AMQP class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

from pamqp import commands

from broker.amqp.channel import Channel
from broker.amqp.errors import UNEXPECTED, ChannelError, ConnectionFault, Fatal, ProtocolError
from broker.amqp.lenient_methods import AccessRequest, AccessRequestOk, QueueDeclareOk
from broker.core.names import RESERVED, strip_name
from broker.core.postponed import Postponed
from broker.core.publishing.accepted_link import LINK_MESSAGE_BYTES, LINK_QUEUE, AcceptedLink
from broker.core.publishing.reply_to import DIRECT_REPLY_TO, ReplyConsumer
from broker.core.queue.level_owner import LevelOwner
from broker.core.queue.queue import Queue
from broker.core.session.basic import BasicSession
from broker.core.session.channel_confirms import ChannelConfirms
from broker.core.session.client import SessionClient
from broker.core.session.exchange import ExchangeSession
from broker.core.session.publisher import MakeConfirms, Publisher
from broker.core.session.queue import QueueSession
from broker.core.session.tx import TxSession
from broker.core.vhost import Vhost

AHEAD_MAX: Final = 100  # at most this many methods are postponed together with the method before them
DELIVERIES_PER_UNIT: Final = 10  # deliveries for one unit of the method budget


class SessionOfChannel:
    """The session of a channel: one object per AMQP class, and others for rarely used features, created at first use.

    Invariant: `transactions` is set on a transactional channel, `replies` and `link` on one that consumes replies or an
        overlay link. `publish` and `publish_run` are bound methods of the publisher, which saves a call per publish;
        `settling` processes acks. On a transactional channel, `transactions` takes over all three, and `rewired` is
        called after that.
    """

    __slots__ = ("basic", "channel", "closed", "exchanges", "link", "publish", "publish_run", "publisher", "queues",
                 "replies", "rewired", "session", "settling", "transactions", "vhost")  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        session: SessionClient,
        vhost: Vhost,
        *,
        basic: Callable[[Channel, SessionClient, Vhost], BasicSession] = BasicSession,
        confirms: MakeConfirms = ChannelConfirms,
    ) -> None:
        """Create the objects for deliveries and confirms with `basic` and `confirms`."""
        self.channel = channel
        self.session = session
        self.vhost = vhost
        self.closed = False
        self.exchanges = ExchangeSession(channel, session, vhost)
        self.queues = QueueSession(channel, session, vhost)
        self.basic = basic(channel, session, vhost)
        self.publisher = Publisher(channel, session, vhost, confirms)
        self.transactions: TxSession | None = None
        self.replies: ReplyConsumer | None = None
        self.link: AcceptedLink | None = None
        self.publish: Callable[[bytes, bytes, bytes], None] = self.publisher.publish
        self.publish_run: Callable[[list[bytes], list[bytes], list[bytes], int], int] = self.publisher.publish_run
        self.settling: BasicSession | TxSession = self.basic
        self.rewired: Callable[[SessionOfChannel], None] | None = None

    def method(self, method: Any) -> None:
        """Run any method except basic.publish and those that open or close a channel or connection.

        Raises: the errors of its class; ConnectionFault 503 for a method that only a server may send.
        """
        act = METHODS.get(type(method))
        if act is None:
            raise ConnectionFault(503, "unimplemented method")
        try:
            act(self, method)
        except Postponed as postponed:
            self._postpone(method, postponed)

    def _postpone(self, method: Any, postponed: Postponed) -> None:
        """Hold the connection, and run a method again when the answer that it needs has arrived."""
        if is_plain_addition(method):
            self._look_ahead(postponed)
        self.session.connection.hold()
        self.session.postponed.append(postponed)
        postponed.begin(partial(self._run_again, method))

    def _look_ahead(self, postponed: Postponed) -> None:
        """Postpone the declares and binds that directly follow this method together with it, so that their answers are
        requested together. Each of them runs later, in its order, and requests its answer again if necessary.
        """
        for channel, method in self.session.connection.upcoming(AHEAD_MAX):
            if not is_plain_addition(method):
                break
            method.nowait = True  # if it is not postponed, it must not be answered before its turn
            try:
                METHODS[type(method)](cast("SessionOfChannel", channel.session), method)
            except Postponed as following:
                if not postponed.combine_with(following):
                    break
            except ProtocolError:
                break

    def _run_again(self, method: Any) -> None:
        """Run a postponed method, unless its channel has been closed."""
        connection, postponed = self.session.connection, self.session.postponed
        connection.release()
        count = len(postponed)
        try:
            if not self.closed:
                postponed[-1].check()
                self.method(method)
        except Fatal:
            raise
        except ProtocolError as error:
            error.blame(method.index >> 16, method.index & 0xFFFF)
            connection.fail(error, self.channel.number)
        except Exception as error:  # noqa: BLE001 - any error ends this connection and no other
            connection.session.crashed(error)
            connection.fail(ConnectionFault(541, UNEXPECTED))
        if len(postponed) == count:  # the method was not postponed again
            postponed.clear()

    def leave(self) -> None:
        """Before a client's channel.close, serve the queues of the channel's consumers and of its unacked messages."""
        unacked = [level.queue for level in self.basic.unacked.levels()]
        self._deliver_first([*self.basic.queues(), *unacked])

    def close(self) -> None:
        """End the channel's consumers, and requeue its unacked messages."""
        self.closed = True
        self.session.channel_closed(self.basic.unacked.count + self.basic.unacked.aside_count)
        self.publisher.confirms.close()
        if self.session.client_key:
            self.publisher.forget()
        self._end_replies()
        self._end_link()
        if self.transactions is not None:
            self.transactions.close()
        self.basic.close()

    def flow(self, method: commands.Channel.Flow) -> None:
        """Answer a request to start deliveries, which are never stopped.

        Raises: ConnectionFault 540 for a request to stop them, as in RabbitMQ.
        """
        if not method.active:
            raise ConnectionFault(540, "active=false")
        self.channel.send(commands.Channel.FlowOk(active=True))

    def declare_queue(self, method: commands.Queue.Declare) -> None:
        """Declare a queue; for a direct reply name, check that its consumer exists. Raises: as QueueSession.declare."""
        if method.queue.startswith(DIRECT_REPLY_TO):
            name = strip_name(method.queue)
            if not self.vhost.replies.exists(name):
                raise ChannelError(404, f"no {self.vhost.queue_resource(name)}")
            if not method.nowait:
                self.channel.send(QueueDeclareOk(name, 0, 1))
        else:
            self._deliver_first(self._named(method.queue))
            self.queues.declare(method)

    def purge_queue(self, method: commands.Queue.Purge) -> None:
        self._deliver_first(self._named(method.queue))
        self.queues.purge(method)

    def delete_queue(self, method: commands.Queue.Delete) -> None:
        self._deliver_first(self._named(method.queue))
        self.queues.delete(method)

    def qos(self, method: commands.Basic.Qos) -> None:
        self._deliver_first(self.basic.queues())
        self.basic.qos(method)

    def consume(self, method: commands.Basic.Consume) -> None:
        """Start a consumer on the named queue, the direct reply consumer, or an overlay link."""
        if method.queue == DIRECT_REPLY_TO:
            self._consume_replies(method)
        elif method.queue == LINK_QUEUE:
            self._open_link(method)
        else:
            queue = self.queues.find(method.queue, "read")
            room = self.basic.room_of_next(no_ack=method.no_ack)
            queue.prepare_for("consume", self.session, exclusive=method.exclusive, room=room)
            self._deliver_first([queue])
            self.basic.consume(method, queue)

    def cancel(self, method: commands.Basic.Cancel) -> None:
        """Cancel a consumer, the direct reply consumer, or an overlay link."""
        is_link = self.link is not None and method.consumer_tag == self.link.tag
        if is_link or (self.replies is not None and method.consumer_tag == self.replies.tag):
            if is_link:
                self._end_link()
            else:
                self._end_replies()
            if not method.nowait:
                self.channel.send(commands.Basic.CancelOk(method.consumer_tag))
            return
        consumer = self.basic.consumers.get(method.consumer_tag or "")
        if consumer is not None:
            self._deliver_first([consumer.queue])
        self.basic.cancel(method)

    def _open_link(self, method: commands.Basic.Consume) -> None:
        """Open an overlay link for another broker.

        Raises: ChannelError 403 if the user or the other broker may not open a link, 406 for a wrong request, and if
            there is a link already.
        """
        vhost = self.vhost
        resource = vhost.queue_resource(LINK_QUEUE)
        self.session.check(resource, "read")
        if vhost.accept_link is None:
            raise ChannelError(403, f"access to {resource} refused: this broker takes no part in an overlay")
        if not method.no_ack:
            raise ChannelError(406, f"{resource} cannot be acknowledged")
        if self.link is not None:
            raise ChannelError(406, "this channel has a link already")
        tag = method.consumer_tag or vhost.new_name("amq.ctag-")
        name = vhost.replies.new_name(vhost.new_name)
        link = AcceptedLink(self.channel, self.session.output_window, tag, name)
        self.session.be_patient()
        link.begin(vhost.accept_link(dict(method.arguments or {}), link))
        self.channel.limit_messages(LINK_MESSAGE_BYTES)
        self.link = vhost.replies[name] = link
        if not method.nowait:
            self.channel.send(commands.Basic.ConsumeOk(tag))
        link.carry(b"")  # its routing key tells the other broker the name

    def _end_link(self) -> None:
        """End the link of the channel, if it has one."""
        link, self.link = self.link, None
        if link is not None:
            del self.vhost.replies[link.name]
            link.end()

    def _consume_replies(self, method: commands.Basic.Consume) -> None:
        """Start the direct reply consumer. It reads no queue, so no right is checked, as in RabbitMQ.

        Raises: ChannelError 406 for acks or a second reply consumer; ConnectionFault 530 for a consumer tag in use.
        """
        if method.consumer_tag in self.basic.consumers:
            raise ConnectionFault(530, f"attempt to reuse consumer tag '{method.consumer_tag}'")
        if not method.no_ack:
            raise ChannelError(406, "reply consumer cannot acknowledge")
        if self.replies is not None:
            raise ChannelError(406, "reply consumer already set")
        vhost = self.vhost
        tag = method.consumer_tag or vhost.new_name("amq.ctag-")
        name = vhost.replies.new_name(vhost.new_name)
        self.replies = vhost.replies[name] = ReplyConsumer(tag, name, self.channel, self.basic.unacked)
        self.publisher.detailed.set_reply_consumer(self.replies)
        if not method.nowait:
            self.channel.send(commands.Basic.ConsumeOk(tag))

    def _end_replies(self) -> None:
        """End the direct reply consumer, if the channel has one."""
        consumer, self.replies = self.replies, None
        if consumer is not None:
            self.publisher.detailed.set_reply_consumer(None)
            del self.vhost.replies[consumer.name]

    def select_confirms(self, method: commands.Confirm.Select) -> None:
        """Confirm every publish from now on, numbered from 1; a second call changes nothing.

        Raises: ChannelError 406 on a transactional channel.
        """
        if self.transactions is not None:
            raise ChannelError(406, "cannot switch from tx to confirm mode")
        if not method.nowait:
            self.channel.send(commands.Confirm.SelectOk())
        self.publisher.confirms.start()

    def select_tx(self, _method: commands.Tx.Select) -> None:
        """Make the channel transactional; a second call changes nothing. Raises: ChannelError 406 in confirm mode."""
        if self.publisher.confirms.confirming:
            raise ChannelError(406, "cannot switch from confirm to tx mode")
        if self.transactions is None:
            transactions = TxSession(self.channel, self.session, self.vhost, self.publisher, self.basic)
            self.transactions = self.settling = transactions
            self.publish = transactions.publish
            self.publish_run = transactions.publish_run
            if self.rewired is not None:
                self.rewired(self)
        self.channel.send(commands.Tx.SelectOk())

    def selected_transactions(self) -> TxSession:
        """Return the channel's transactions. Raises: ChannelError 406 unless the channel is transactional."""
        if self.transactions is None:
            raise ChannelError(406, "channel is not transactional")
        return self.transactions

    def get(self, method: commands.Basic.Get) -> None:
        queue = self.queues.find(method.queue, "read")
        queue.prepare_for("get", self.session)
        self.publisher.wide.enter_now(queue)
        delivered = queue.serve_first() if queue.awake else 0
        self.basic.get(queue, no_ack=method.no_ack)
        self._pay(delivered)

    def recover(self, method: commands.Basic.Recover) -> None:
        self.basic.recover(requeue=method.requeue, then=partial(self.channel.send, commands.Basic.RecoverOk()))

    # -- deliveries before a method -----------------------------------------------------------------------------------

    def _deliver_first(self, queues: Iterable[LevelOwner]) -> None:
        """Deliver now what waits for the next turn, because the current method depends on what has been delivered.

        Cost: the deliveries, and one check per queue.
        """
        delivered = 0
        for queue in queues:
            if queue.awake:
                delivered += queue.serve_first()
        self._pay(delivered)

    def _pay(self, delivered: int) -> None:
        if delivered:
            self.session.method_budget.spend(delivered // DELIVERIES_PER_UNIT)

    def _named(self, name: str) -> list[Queue]:
        """Return a list with the named queue, empty if there is none; wide publishes enter the queue first."""
        queue = self.queues.known(name)
        if queue is None:
            return []
        self.publisher.wide.enter_now(queue)
        return [queue]


def is_plain_addition(method: Any) -> bool:
    """Return whether a method only adds an exchange, a queue or a binding with explicit names."""
    match method:
        case commands.Queue.Declare():
            return not method.passive and bool(method.queue) and not method.queue.startswith(RESERVED)
        case commands.Exchange.Declare():
            return not method.passive
        case commands.Queue.Bind():
            return bool(method.queue)
        case commands.Exchange.Bind():
            return True
    return False


METHODS: Final[dict[type, Callable[[SessionOfChannel, Any], None]]] = {
    # sent by older clients; rights are checked when they are used
    AccessRequest: lambda session, _method: session.channel.send(AccessRequestOk()),
    commands.Channel.Flow: SessionOfChannel.flow,
    commands.Exchange.Declare: lambda session, method: session.exchanges.declare(method),
    commands.Exchange.Delete: lambda session, method: session.exchanges.delete(method),
    commands.Exchange.Bind: lambda session, method: session.exchanges.bind(method),
    commands.Exchange.Unbind: lambda session, method: session.exchanges.unbind(method),
    commands.Queue.Declare: SessionOfChannel.declare_queue,
    commands.Queue.Bind: lambda session, method: session.queues.bind(method),
    commands.Queue.Unbind: lambda session, method: session.queues.unbind(method),
    commands.Queue.Purge: SessionOfChannel.purge_queue,
    commands.Queue.Delete: SessionOfChannel.delete_queue,
    commands.Basic.Qos: SessionOfChannel.qos,
    commands.Basic.Consume: SessionOfChannel.consume,
    commands.Basic.Cancel: SessionOfChannel.cancel,
    commands.Basic.Get: SessionOfChannel.get,
    commands.Basic.Ack: lambda session, m: session.settling.ack(m.delivery_tag, multiple=m.multiple),
    commands.Basic.Nack: lambda session, m: session.settling.nack(
        m.delivery_tag, multiple=m.multiple, requeue=m.requeue, failed=False
    ),
    commands.Basic.Reject: lambda session, m: session.settling.nack(
        m.delivery_tag, multiple=False, requeue=m.requeue, failed=True
    ),
    commands.Basic.Recover: SessionOfChannel.recover,
    commands.Basic.RecoverAsync: lambda session, method: session.basic.recover(requeue=method.requeue),
    commands.Confirm.Select: SessionOfChannel.select_confirms,
    commands.Tx.Select: SessionOfChannel.select_tx,
    commands.Tx.Commit: lambda session, _method: session.selected_transactions().commit(),
    commands.Tx.Rollback: lambda session, _method: session.selected_transactions().rollback(),
}
