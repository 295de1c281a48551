"""The broker's side of an MQTT connection: its user and vhost, as in AMQP, and the queues of its session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.amqp.channel import Channel
from broker.amqp.codec import Method
from broker.amqp.errors import ChannelError
from broker.amqp.lenient_methods import BindAny, ConsumeAny, DeclareAny, DeleteAny, UnbindAny
from broker.amqp.output import UNDECIDED, Withheld
from broker.core.auth.logins import ANONYMOUS, MQTT
from broker.core.mqtt.basic import MqttBasic
from broker.core.mqtt.confirms import MqttConfirms
from broker.core.mqtt.consumer import ClientForm
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.subscriptions import match_of
from broker.core.queue.queue import Queue
from broker.core.session.channel import SessionOfChannel
from broker.core.session.client import SessionClient
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.mqtt.errors import PacketError
from broker.mqtt.reason_codes import FILTER_INVALID
from broker.mqtt.topics import binding_key, swapped

CHANNEL: Final = 1
PREFIX: Final = "mqtt-subscription-"
SUFFIXES: Final = ("qos0", "qos1")
SHARED_PREFIX: Final = "mqtt-shared-"
SYSTEM_PREFIX: Final = "$SYS."
DIRECT: Final = "amq.direct"  # MQTT binds to it only to record shared subscriptions and filters below $SYS
NAME_MAX_BYTES: Final = 255
CLIENT_ID_MAX_BYTES: Final = NAME_MAX_BYTES - len(PREFIX) - len(SUFFIXES[0])
EXPIRES: Final = "x-expires"


class MqttChannel(Channel):
    """The single channel of an MQTT connection. It discards AMQP methods, because the answers are MQTT packets. An
    answer that waits for the disk also holds back the MQTT answers after it.
    """

    __slots__ = ()

    def send(self, method: Method) -> None:
        """Do nothing."""

    def send_content(self, method: Method, header: bytes, body: bytes) -> None:
        """Do nothing."""

    def send_return(self, method: Method, header: bytes, body: bytes) -> None:
        """Do nothing."""

    def withhold(self, method: Method | None, number: int = UNDECIDED) -> Withheld:
        return super().withhold(None, number)

    def begin_closing(self, error: ChannelError) -> None:
        """Do nothing, because an error closes the connection."""


def shared_name(share: str, topic_filter: str) -> str:
    """Return the name of the queue of a shared subscription. Raises: PacketError 0x8F if it is too long."""
    name = f"{SHARED_PREFIX}{share}/{topic_filter}"
    if len(name.encode()) > NAME_MAX_BYTES:
        raise PacketError(FILTER_INVALID, "the share name and the filter are too long for the name of a queue")
    return name


class MqttSession(SessionOfChannel):
    """The session of one client: a queue for QoS 0 and one for QoS 1 and 2, with a binding for each filter. A lasting
    session has durable queues with `x-expires`; other sessions have exclusive ones. In a cluster, a method that is
    postponed runs again: `_was_bound` records whether the filter was subscribed before the first run.
    Units: `expiry_s` is how long the session outlives its connection, or 0 if it does not.
    Source: RabbitMQ, rabbit_mqtt_processor, for names and arguments.
    """

    __slots__ = ("_client_id", "_longest_s", "_mapping", "_shared", "_was_bound", "confirms", "deliveries",
                 "expiry_s")  # fmt: skip

    _mapping: MessageMapping  # set by `begin`

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        super().__init__(channel, session, vhost, basic=MqttBasic, confirms=MqttConfirms)
        basic, confirms = self.basic, self.publisher.confirms
        assert isinstance(basic, MqttBasic) and isinstance(confirms, MqttConfirms)
        self.deliveries = basic
        self.confirms = confirms
        self._client_id = ""
        self._longest_s = 0
        self._shared: dict[str, tuple[int, Mapping[str, Any]]] = {}  # QoS and options of each shared queue, by name
        self._was_bound = False
        self.expiry_s = 0

    def begin(self, form: ClientForm, expiry_s: int, longest_s: int) -> None:
        """Set the client that connects. Units: `longest_s` is the maximum expiry of a session."""
        self._longest_s = longest_s
        self._client_id = form.client_id
        self._mapping = form.mapping
        self.session.identify(swapped(form.client_id) if form.mapping.swaps else form.client_id)
        self.expiry_s = expiry_s
        self.deliveries.set_form(form)

    def queue_name(self, qos: int) -> str:
        """Return the name of the queue for a QoS."""
        return f"{PREFIX}{self._client_id}{SUFFIXES[min(qos, 1)]}"

    def kept_queues(self) -> Sequence[Queue]:
        """Return the queues of the session that outlive a connection."""
        found = [self.vhost.queues.get(self.queue_name(qos)) for qos in (0, 1)]
        return [queue for queue in found if queue is not None and queue.exclusive_owner is None]

    def renew_expiry(self, expiry_s: int) -> None:
        """Set the expiry that the client requests; if it is 0, the queues are deleted when the connection ends."""
        self.expiry_s = expiry_s
        if expiry_s:
            for queue in self.kept_queues():
                self.vhost.queues.change_expiry(queue, expiry_s * 1000)

    def end_with_broker(self) -> None:
        """Let the queues of an earlier connection expire at once if the broker is killed during this connection."""
        for queue in self.kept_queues():
            self.vhost.queues.change_expiry(queue, 1)

    def resume(self, qos: int) -> None:
        """Consume the queue of an earlier connection, if there is one. Raises: ProtocolError."""
        name = self.queue_name(qos)
        if name in self.vhost.queues:
            bindings = [*self._bindings(name), *self._marks(name, SYSTEM_PREFIX)]
            has_messages = qos > 0 and self.vhost.queues[name].remaining() > 0
            self.deliveries.subscriptions[qos].load(bindings, self._mapping.dialect, has_messages=has_messages)
            self._consume(qos)

    def earlier_shares(self) -> Sequence[tuple[str, str, int, Mapping[str, Any]]]:
        """Return the arguments of `share` for each shared subscription of an earlier connection."""
        found: list[tuple[str, str, int, Mapping[str, Any]]] = []
        for qos in (0, 1):
            for shared, options in self._marks(self.queue_name(qos)):
                topic_filter = shared.removeprefix(SHARED_PREFIX).partition("/")[2]
                self._shared[shared] = qos, options
                found.append((shared, binding_key(topic_filter, NAME_MAX_BYTES, self._mapping.swaps), qos, options))
        return found

    def delete(self, qos: int) -> None:
        """Delete the queue for a QoS, if there is one, and end its shared subscriptions. Raises: ProtocolError."""
        name = self.queue_name(qos)
        self._end_consumer(name)
        if name in self.vhost.queues or self.session.postponed:  # a postponed deletion runs again for its answer
            for shared, _ in self._marks(name):
                self._leave(shared)
            self.delete_queue(DeleteAny(queue=name))

    @property
    def local_client_id(self) -> str:
        """The client id if a subscription has excluded the client's own publishes, otherwise empty."""
        zero, one = self.deliveries.subscriptions
        return self._client_id if zero.no_local or one.no_local else ""

    def subscribe(self, key: str, qos: int, options: Mapping[str, Any]) -> bool:
        """Bind the queue for a QoS, creating it if it is missing, and return whether the filter is new. A binding with
        earlier options is removed after the new one is added. Raises: ProtocolError.
        """
        self._record_bound(key)
        place = min(qos, 1)
        name = self._make_queue(place)
        subscriptions = self.deliveries.subscriptions[place]
        earlier = subscriptions.arguments_of(key)
        replaces = earlier != options and self._is_bound(name, key, earlier)
        if key.startswith(SYSTEM_PREFIX):
            self.vhost.bindings.bind(name, DIRECT, key, dict(options), self.session)
        else:
            exchange = self._mapping.exchange
            self.queues.bind(BindAny(queue=name, exchange=exchange, routing_key=key, arguments=dict(options)))
        if subscriptions.matching:
            subscriptions.put(key, options)
        elif options:
            subscriptions.load([*self._bindings(name), *self._marks(name, SYSTEM_PREFIX)], self._mapping.dialect)
        if replaces:
            self._unbind(name, key, earlier)
        self._consume(place)
        self._end(1 - place, key)
        self.deliveries.forget_matches()
        return not self._was_bound

    def _make_queue(self, qos: int) -> str:
        """Return the name of the queue for a QoS, creating the queue if it is missing. Raises: ProtocolError."""
        name = self.queue_name(qos)
        if name not in self.vhost.queues:
            lasts = self.expiry_s > 0
            arguments: dict[str, Any] = {"x-queue-type": "classic"}
            if lasts:
                arguments[EXPIRES] = self.expiry_s * 1000
            self.declare_queue(DeclareAny(queue=name, durable=lasts, exclusive=not lasts, arguments=arguments))
        return name

    def unsubscribe(self, key: str) -> bool:
        """Remove the binding of a filter, and return whether there was one. Raises: ProtocolError."""
        self._record_bound(key)
        self._end(0, key)
        self._end(1, key)
        self.deliveries.forget_matches()
        return self._was_bound

    def _record_bound(self, key: str) -> None:
        """Record whether a filter is subscribed, unless a postponed method is running again."""
        if not self.session.postponed:
            found = [
                self._is_bound(self.queue_name(place), key, subscriptions.arguments_of(key))
                for place, subscriptions in enumerate(self.deliveries.subscriptions)
            ]
            self._was_bound = any(found)

    def _end(self, place: int, key: str) -> None:
        """Remove the subscription of a filter from one of the queues, if it is there."""
        name = self.queue_name(place)
        subscriptions = self.deliveries.subscriptions[place]
        arguments = subscriptions.arguments_of(key)
        if self._is_bound(name, key, arguments):
            subscriptions.remove(key)
            self._unbind(name, key, arguments)

    def _unbind(self, name: str, key: str, arguments: Mapping[str, Any]) -> None:
        if key.startswith(SYSTEM_PREFIX):
            self.vhost.bindings.unbind(name, DIRECT, key, arguments, self.session)
        else:
            exchange = self._mapping.exchange
            self.queues.unbind(UnbindAny(queue=name, exchange=exchange, routing_key=key, arguments=dict(arguments)))

    def _is_bound(self, name: str, key: str, arguments: Mapping[str, Any]) -> bool:
        queue = self.vhost.queues.get(name)
        exchange = self.vhost.exchanges.get(DIRECT if key.startswith(SYSTEM_PREFIX) else self._mapping.exchange)
        return queue is not None and exchange is not None and exchange.is_bound(queue, key, arguments)

    def _bindings(self, name: str, source: str = "") -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Return the keys and arguments of a queue's bindings to `source`, or to the exchange for MQTT topics."""
        queue = self.vhost.queues.get(name)
        exchange = self.vhost.exchanges.get(source or self._mapping.exchange)
        bundle = None if queue is None or exchange is None else queue.incoming.get(exchange)
        return () if bundle is None else tuple(bundle.items())

    def _consume(self, qos: int) -> None:
        name = self.queue_name(qos)
        if name not in self.basic.consumers:
            self.consume(ConsumeAny(queue=name, consumer_tag=name, no_ack=qos == 0))

    def _end_consumer(self, name: str) -> None:
        """End the consumer of a queue, if there is one; its unacknowledged messages are not requeued."""
        consumer = self.basic.consumers.pop(name, None)
        if consumer is not None:
            consumer.queue.remove_consumer(consumer)

    # -- shared subscriptions -----------------------------------------------------------------------------------------

    def share(self, name: str, key: str, qos: int, options: Mapping[str, Any]) -> None:
        """Consume a shared queue, creating it if it is missing. Raises: ProtocolError.

        The subscription is recorded as a binding of the session's queue for the QoS, with the name of the shared queue
        as its key. So it lasts as long as the session, and is found when the client connects again.
        """
        own = self._make_queue(qos)
        self._consume(qos)
        if name not in self.vhost.queues:
            arguments: dict[str, Any] = {"x-queue-type": "classic", EXPIRES: max(1, self._longest_s) * 1000}
            self.declare_queue(DeclareAny(queue=name, durable=True, arguments=arguments))
        self.queues.bind(BindAny(queue=name, exchange=self._mapping.exchange, routing_key=key))
        earlier = self._shared.get(name)
        self.vhost.bindings.bind(own, DIRECT, name, dict(options), self.session)
        if earlier is not None and earlier != (qos, options):
            self._unmark(name)
        self._shared[name] = qos, options
        self.deliveries.shared[name] = match_of(options)
        self._end_consumer(name)
        self.consume(ConsumeAny(queue=name, consumer_tag=name, no_ack=qos == 0))

    def unshare(self, name: str) -> bool:
        """Stop consuming a shared queue, and return whether it was consumed."""
        if name not in self._shared:
            return False
        self._unmark(name)
        del self._shared[name]
        self._leave(name)
        return True

    def _marks(self, name: str, prefix: str = SHARED_PREFIX) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Return the bindings of a queue to `amq.direct` whose keys begin with a prefix."""
        return [one for one in self._bindings(name, DIRECT) if one[0].startswith(prefix)]

    def system_filters(self) -> Sequence[tuple[str, str]]:
        """Return the name of the queue and the binding key of each subscription below `$SYS`."""
        names = [self.queue_name(qos) for qos in (0, 1)]
        return [(name, key) for name in names for key, _ in self._marks(name, SYSTEM_PREFIX)]

    def _unmark(self, name: str) -> None:
        """Remove the binding that records the subscription to a shared queue."""
        qos, options = self._shared[name]
        self.vhost.bindings.unbind(self.queue_name(qos), DIRECT, name, options, self.session)

    def _leave(self, name: str) -> None:
        """End the consumer of a shared queue, and delete the queue if no other session has this subscription."""
        self._end_consumer(name)
        own = [self.queue_name(qos) for qos in (0, 1)]
        queue = self.vhost.queues.get(name)
        destinations = self.vhost.exchanges[DIRECT].route(name).destinations
        if queue is not None and all(found.name in own for found in destinations):
            self.vhost.queues.unused(queue)

    def close(self) -> None:
        """End the consumers. If the session ends too, delete the shared queues that no other session uses."""
        super().close()
        if not self.expiry_s:
            for name in self._shared:
                self._leave(name)


class MqttSessionOfConnection(SessionOfConnection):
    """The broker's side of an MQTT connection."""

    __slots__ = ()

    @property
    def login_protocol(self) -> str:
        return MQTT

    def log_in(self, mechanism: str, response: bytes) -> None:
        """Log in as `authenticate` does, or as the anonymous user that `response` names."""
        if mechanism != ANONYMOUS:
            self.authenticate(mechanism, response)
            return
        self.mechanism = ANONYMOUS
        self._logins.decide_anonymous(response.decode(), self.peer, partial(self._decided, ANONYMOUS))

    def new_session(self, channel: Channel, vhost: Vhost) -> SessionOfChannel:
        return MqttSession(channel, self, vhost)
