"""The broker's side of an MQTT connection: its user and vhost as for AMQP, and the queues of its MQTT session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.amqp.channel import Channel
from broker.amqp.lenient_methods import BindAny, ConsumeAny, DeclareAny, DeleteAny, UnbindAny
from broker.core.mqtt.basic import MqttBasic
from broker.core.mqtt.confirms import MqttConfirms
from broker.core.mqtt.consumer import ClientForm
from broker.core.mqtt.mapping import EXCHANGE
from broker.core.queue.queue import Queue
from broker.core.session.channel import SessionOfChannel
from broker.core.session.client import SessionClient
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost

__all__ = ["CLIENT_ID_MAX_BYTES", "MqttSession", "MqttSessionOfConnection"]

PREFIX: Final = "mqtt-subscription-"
SUFFIXES: Final = ("qos0", "qos1")
CLIENT_ID_MAX_BYTES: Final = 255 - len(PREFIX) - len(SUFFIXES[0])
EXPIRES: Final = "x-expires"


class MqttSession(SessionOfChannel):
    """The session of one client: a queue for each QoS that it subscribes with, and a binding for each filter.

    A session that lasts has durable queues with `x-expires`; the queues of another one are exclusive. A repeated
    subscription moves the binding to the queue of its QoS. Names and arguments: RabbitMQ, rabbit_mqtt_processor.
    In a cluster each step of these methods may be postponed, and the method runs again: `_was_bound` keeps whether it
    found its filter subscribed.
    Units: `expiry_s` is how long the session lasts without a connection, 0 for no longer than that.
    """

    __slots__ = ("_client_id", "_confirms", "_mqtt_basic", "_was_bound", "expiry_s")

    def __init__(self, channel: Channel, session: SessionClient, vhost: Vhost) -> None:
        super().__init__(channel, session, vhost, basic=MqttBasic, confirms=MqttConfirms)
        basic, confirms = self.basic, self.publisher.confirms
        assert isinstance(basic, MqttBasic) and isinstance(confirms, MqttConfirms)
        self._mqtt_basic = basic
        self._confirms = confirms
        self._client_id = ""
        self._was_bound = False
        self.expiry_s = 0

    def begin(self, client_id: str, form: ClientForm, expiry_s: int, prefetch: int) -> None:
        """Take the client that connects."""
        self._client_id = client_id
        self.expiry_s = expiry_s
        self._mqtt_basic.take_form(form, prefetch)

    @property
    def deliveries(self) -> MqttBasic:
        """The deliveries to the client."""
        return self._mqtt_basic

    @property
    def confirms(self) -> MqttConfirms:
        """The answers to what the client publishes."""
        return self._confirms

    def queue_name(self, qos: int) -> str:
        """Return the name of the queue for a QoS."""
        return f"{PREFIX}{self._client_id}{SUFFIXES[qos]}"

    def kept_queues(self) -> Sequence[Queue]:
        """Return the queues that an earlier connection left."""
        found = [self.vhost.queues.get(self.queue_name(qos)) for qos in (0, 1)]
        return [queue for queue in found if queue is not None and queue.exclusive_owner is None]

    def renew_expiry(self, expiry_s: int) -> None:
        """Let the session expire as the client asks now; one that is to end with the connection is deleted then."""
        self.expiry_s = expiry_s
        if expiry_s:
            for queue in self.kept_queues():
                self.vhost.queues.change_expiry(queue, expiry_s * 1000)

    def resume(self, qos: int) -> None:
        """Consume a queue that an earlier connection left, if there is one. Raises: ChannelError 403."""
        if self.queue_name(qos) in self.vhost.queues:
            self._consume(qos)

    def delete(self, qos: int) -> None:
        """Delete the queue for a QoS, if there is one. Raises: ChannelError 403."""
        name = self.queue_name(qos)
        consumer = self.basic.consumers.pop(name, None)
        if consumer is not None:
            consumer.queue.remove_consumer(consumer)
        if name in self.vhost.queues or self.session.postponed:  # the postponed method answers
            self.delete_queue(DeleteAny(queue=name))

    def subscribe(self, key: str, qos: int) -> bool:
        """Bind the queue for a QoS, which is made by the first subscription, and return whether the filter is new.

        Raises: ChannelError.
        """
        self._look_for(key)
        name = self.queue_name(qos)
        if name not in self.vhost.queues:
            lasts = self.expiry_s > 0
            arguments: dict[str, Any] = {"x-queue-type": "classic"}
            if lasts:
                arguments[EXPIRES] = self.expiry_s * 1000
            self.declare_queue(DeclareAny(queue=name, durable=lasts, exclusive=not lasts, arguments=arguments))
        self.queues.bind(BindAny(queue=name, exchange=EXCHANGE, routing_key=key))
        if name not in self.basic.consumers:
            self._consume(qos)
        self._unbind(1 - qos, key)
        return not self._was_bound

    def unsubscribe(self, key: str) -> bool:
        """Remove the binding of a filter, and return whether there was one. Raises: ChannelError 403."""
        self._look_for(key)
        self._unbind(0, key)
        self._unbind(1, key)
        return self._was_bound

    def _look_for(self, key: str) -> None:
        """Note whether a filter is subscribed, unless the method runs again."""
        if not self.session.postponed:
            self._was_bound = self._is_bound(self.queue_name(0), key) or self._is_bound(self.queue_name(1), key)

    def _unbind(self, qos: int, key: str) -> None:
        name = self.queue_name(qos)
        if self._is_bound(name, key):
            self.queues.unbind(UnbindAny(queue=name, exchange=EXCHANGE, routing_key=key))

    def _is_bound(self, name: str, key: str) -> bool:
        queue = self.vhost.queues.get(name)
        exchange = self.vhost.exchanges.get(EXCHANGE)
        return queue is not None and exchange is not None and exchange.is_bound(queue, key, {})

    def _consume(self, qos: int) -> None:
        name = self.queue_name(qos)
        self.consume(ConsumeAny(queue=name, consumer_tag=name, no_ack=qos == 0))


class MqttSessionOfConnection(SessionOfConnection):
    """The broker's side of an MQTT connection."""

    __slots__ = ()

    def new_session(self, channel: Channel, vhost: Vhost) -> SessionOfChannel:
        """Return the session of the connection's channel."""
        return MqttSession(channel, self, vhost)
