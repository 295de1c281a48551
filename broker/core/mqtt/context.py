"""The state that the MQTT connections of a broker share: settings, client ids, and internal messages of each vhost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from mypy_extensions import mypyc_attr

from broker import __version__
from broker.amqp.connection import Connection
from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import encode_header
from broker.core.auth.peer import Peer
from broker.core.message.message import Envelope, new_message
from broker.core.mqtt.faults import PacketFault, TakenOver
from broker.core.mqtt.handshakes import Handshakes
from broker.core.mqtt.mapping import SYSTEM_EXCHANGE, MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.session import MqttSession
from broker.core.mqtt.wills import Wills
from broker.core.queue.kinds import WILLS_NAME
from broker.core.vhost import Vhost
from broker.mqtt.reason_codes import SERVER_UNAVAILABLE
from broker.routing.pattern import AMQP, words_match
from broker.settings.mqtt import Mqtt

INTERVAL_MS: Final = 10_000  # between two publishes of the topics below $SYS


@mypyc_attr(allow_interpreted_subclasses=True)
class MqttClients(dict[tuple[str, str], Connection]):
    """The connection of each client, by vhost and client id."""

    def enter(self, vhost: str, client_id: str, connection: Connection) -> None:
        """Add a connection, and end an older one of the same client id. Raises: Postponed, in a cluster."""
        older = self.get((vhost, client_id))
        if older is not None:
            older.fail(TakenOver())
        self[vhost, client_id] = connection

    def leave(self, vhost: str, client_id: str, connection: Connection) -> None:
        """Remove a connection, unless another one has replaced it."""
        if self.get((vhost, client_id)) is connection:
            del self[vhost, client_id]


class MqttContext:
    """The state that all MQTT connections of a broker share.

    Units: `qos_max` is 1 in a cluster, which stores neither QoS 2 handshakes nor delayed wills.
    """

    def __init__(
        self,
        settings: Mqtt,
        mapping: MessageMapping,
        clients: MqttClients,
        retained: Callable[[Vhost, MessageMapping, int, int], RetainedMessages],
        *,
        default_vhost: str,
        qos_max: int,
    ) -> None:
        """`retained` creates the store of a vhost's retained messages, with limits in messages and in bytes."""
        self.settings = settings
        self.mapping = mapping
        self.clients = clients
        self.default_vhost = settings.vhost or default_vhost
        self.qos_max = qos_max
        self._states: dict[str, VhostState] = {}
        self._new_retained = retained

    def vhost_and_user(self, name: str, peer: Peer) -> tuple[str, str]:
        """Return the vhost of a client and the name of its user; a user name may have the form `vhost:user`.

        Source: rabbit_mqtt_processor, get_vhost: for a client with a certificate, the port's vhost takes precedence.
        """
        vhost, colon, user = name.rpartition(":")
        of_port = self.settings.port_to_vhost.get(peer.server_port)
        if of_port is not None and (peer.certified or not colon):
            return of_port, name
        return (vhost, user) if colon else (self.default_vhost, name)

    def require_exchange(self, vhost: Vhost) -> None:
        """Create the exchange for MQTT topics in a vhost if it is missing. Raises: PacketFault 0x88 if an exchange of
        that name has another type or dialect; in a cluster, Postponed.
        """
        mapping = self.mapping
        exchange = vhost.exchanges.get(mapping.exchange)
        if exchange is None:
            arguments = {"x-topic-dialect": mapping.dialect.name}
            exchange = vhost.exchanges.declare(mapping.exchange, "topic", durable=True, arguments=arguments)
        if exchange.type != "topic" or exchange.dialect is not mapping.dialect:
            text = f"exchange '{mapping.exchange}' is not a topic exchange of the dialect {mapping.dialect.name}"
            raise PacketFault(SERVER_UNAVAILABLE, text)

    def load(self, vhost: Vhost, done: Callable[[], None]) -> None:
        """Build the indexes of a vhost's internal MQTT messages, then call `done`."""
        limits = self.settings.retained_max, self.settings.retained_max_bytes
        retained = self._new_retained(vhost, self.mapping, *limits)
        state = self._states[vhost.name] = VhostState(vhost, retained, self.clients)
        state.load(done)

    def forget(self, vhost: Vhost) -> None:
        """Drop the state of a vhost that is closed."""
        self._states.pop(vhost.name, None)

    def state_in(self, vhost: Vhost) -> VhostState:
        """Return the MQTT state of a vhost, which may still be loading if the vhost was opened at run time."""
        found = self._states.get(vhost.name)
        if found is None or found.vhost is not vhost:
            self.load(vhost, nothing)
            found = self._states[vhost.name]
        return found


class VhostState:
    """The MQTT state of one vhost: retained messages, QoS 2 handshakes, delayed wills and `$SYS` topics. The handshakes
    are loaded last, so everything is loaded once they are.
    """

    def __init__(self, vhost: Vhost, retained: RetainedMessages, clients: MqttClients) -> None:
        self.vhost = vhost
        self.retained = retained
        self.handshakes = Handshakes(vhost)
        self.system_topics = SystemTopics(vhost, clients, retained)
        self._wills: Wills | None = None
        if retained.by_header:
            vhost.retain_with(retained)

    def load(self, done: Callable[[], None]) -> None:
        load = partial(self.handshakes.load, done)
        if WILLS_NAME in self.vhost.queues:
            load = partial(self.wills.load, load)
        self.retained.load(load)

    @property
    def wills(self) -> Wills:
        """The delayed wills; their queue is created on first use."""
        if self._wills is None:
            self._wills = Wills(self.retained)
        return self._wills

    def resolve_will(self, client_id: str, *, clean_start: bool) -> None:
        """Drop the delayed will of a client that connects, or publish it if a clean start ends its session."""
        if self._wills is not None:
            if clean_start:
                self._wills.publish(client_id)
            else:
                self._wills.cancel(client_id)


class SystemTopics:
    """Publish figures of one vhost as topics below `$SYS`, named as in Mosquitto, to the queues of the sessions that
    subscribe to them. The messages are not routed through bindings, so no other queue gets them.
    """

    def __init__(self, vhost: Vhost, clients: MqttClients, retained: RetainedMessages) -> None:
        self._vhost = vhost
        self._clients = clients
        self._retained = retained
        self._begun_ms = vhost.ports.clock.now_ms
        self._sessions: dict[MqttSession, None] = {}

    def watch(self, session: MqttSession) -> None:
        """Publish to a session now, and periodically until it ends or has no filter below `$SYS`."""
        if self._publish_to(session):
            self._sessions[session] = None
            if self._vhost.ports.deadlines.at_ms(self) is None:
                self._wait()

    def _wait(self) -> None:
        ports = self._vhost.ports
        ports.deadlines.set(self, ports.clock.now_ms + INTERVAL_MS, self._publish)

    def _publish(self) -> None:
        for session in list(self._sessions):
            if not self._publish_to(session):
                del self._sessions[session]
        if self._sessions:
            self._wait()

    def _publish_to(self, session: MqttSession) -> bool:
        """Publish the topics that a session's filters match, and return whether it has any filter below `$SYS`."""
        filters = [] if session.closed else session.system_filters()
        values = self._values() if filters else {}
        for name, key in filters:
            queue = self._vhost.queues.get(name)
            pattern = AMQP.parse(key).words
            for topic, value in values.items():
                if queue is not None and words_match(pattern, AMQP.words(topic)):
                    body = str(value).encode()
                    header = encode_header({"delivery_mode": 1}, len(body))
                    envelope = Envelope(SYSTEM_EXCHANGE, topic)
                    now_ms = self._vhost.ports.clock.now_ms
                    self._vhost.poster.post(new_message(envelope, header, body, facts_of(header), now_ms), (queue,))
        return bool(filters)

    def _values(self) -> dict[str, str | int]:
        """Return the figures by routing key."""
        counts, now_ms = self._vhost.tally.counts(), self._vhost.ports.clock.now_ms
        return {
            "$SYS.broker.version": f"SlotMQ {__version__}",
            "$SYS.broker.uptime": f"{(now_ms - self._begun_ms) // 1000} seconds",
            "$SYS.broker.clients.connected": len([vhost for vhost, _ in self._clients if vhost == self._vhost.name]),
            "$SYS.broker.messages.received": counts.publish,
            "$SYS.broker.messages.sent": counts.deliver + counts.deliver_no_ack,
            "$SYS.broker.retained messages.count": len(self._retained),
        }


def nothing() -> None:
    """Do nothing."""
