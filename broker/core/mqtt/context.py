"""What all MQTT connections of a broker share: settings, the mapping of messages, client ids, and what vhosts store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from broker.core.auth.peer import Peer
from broker.core.mqtt.clients import MqttClients
from broker.core.mqtt.faults import PacketFault
from broker.core.mqtt.handshakes import Handshakes
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from broker.core.mqtt.system_topics import SystemTopics
from broker.core.mqtt.wills import Wills
from broker.core.queue.memory_queue import WILLS_NAME
from broker.core.vhost import Vhost
from broker.mqtt.reason_codes import SERVER_UNAVAILABLE


class MqttContext:
    """What all MQTT connections of a broker share.

    Units: `prefetch` is how many deliveries at QoS 1 a client has unacknowledged, at most; a client may ask for fewer.
        `retained_max` is how many messages a vhost retains. `anonymous_user` is the name of the user that a client
        without a user name and a certificate is; empty, it is refused. `vhosts_of_ports` has the numbers of ports.
        `qos_max` is 1 in a cluster, which keeps no handshakes and no delayed wills.
    """

    __slots__ = ("_handshakes", "_new_retained", "_retained", "_retained_max", "_retained_max_bytes",
                 "_system_topics", "_vhosts_of_ports", "_wills", "anonymous_user", "clients", "default_vhost",
                 "mapping", "packet_max_bytes", "prefetch", "qos_max",
                 "session_expiry_max_s")  # fmt: skip

    def __init__(
        self,
        levels_max: int,
        clients: MqttClients,
        retained: Callable[[Vhost, MessageMapping, int, int], RetainedMessages],
        *,
        exchange: str,
        default_vhost: str,
        qos_max: int,
        packet_max_bytes: int,
        prefetch: int,
        session_expiry_max_s: int,
        retained_max: int,
        retained_max_bytes: int,
        anonymous_user: str,
        vhosts_of_ports: Mapping[int, str],
    ) -> None:
        """`retained` makes what keeps the retained messages of a vhost, for its most messages and bytes."""
        self.clients = clients
        self.mapping = MessageMapping(levels_max, exchange)
        self.default_vhost = default_vhost
        self.packet_max_bytes = packet_max_bytes
        self.prefetch = prefetch
        self.qos_max = qos_max
        self.session_expiry_max_s = session_expiry_max_s
        self._handshakes: dict[str, Handshakes] = {}
        self._system_topics: dict[str, SystemTopics] = {}
        self._wills: dict[str, Wills] = {}  # of vhosts that have had any
        self._new_retained = retained
        self._retained: dict[str, RetainedMessages] = {}
        self._retained_max = retained_max
        self._retained_max_bytes = retained_max_bytes
        self.anonymous_user = anonymous_user
        self._vhosts_of_ports = vhosts_of_ports

    def vhost_and_user(self, name: str, peer: Peer) -> tuple[str, str]:
        """Return the vhost of a client, and the name of its user, who may be named `vhost:user`.

        Source: rabbit_mqtt_processor, get_vhost: the port comes first for a client with a certificate.
        """
        vhost, colon, user = name.rpartition(":")
        of_port = self._vhosts_of_ports.get(peer.server_port)
        if of_port is not None and (peer.certified or not colon):
            return of_port, name
        return (vhost, user) if colon else (self.default_vhost, name)

    def require_exchange(self, vhost: Vhost) -> None:
        """Make the exchange of topics in a vhost, if it is missing. Raises: PacketFault 0x88 for one that cannot be."""
        mapping = self.mapping
        exchange = vhost.exchanges.get(mapping.exchange)
        if exchange is None:
            arguments = {"x-topic-dialect": mapping.dialect.name}
            exchange = vhost.exchanges.declare(mapping.exchange, "topic", durable=True, arguments=arguments)
        if exchange.type != "topic" or exchange.dialect is not mapping.dialect:
            text = f"exchange '{mapping.exchange}' is no topic exchange with x-topic-dialect: {mapping.dialect.name}"
            raise PacketFault(SERVER_UNAVAILABLE, text)

    def load(self, vhost: Vhost, done: Callable[[], None]) -> None:
        """Make the indexes of a vhost's retained messages, delayed wills and handshakes, and call `done` then."""
        retained = self._retained[vhost.name] = self._new_retained(
            vhost, self.mapping, self._retained_max, self._retained_max_bytes
        )
        if retained.by_header:
            vhost.retain_with(retained)
        handshakes = self._handshakes[vhost.name] = Handshakes(vhost)
        self._system_topics[vhost.name] = SystemTopics(vhost, self.clients, retained)
        self._wills.pop(vhost.name, None)
        load = partial(handshakes.load, done)
        if WILLS_NAME in vhost.queues:
            load = partial(self.wills_of(vhost).load, load)
        retained.load(load)

    def retained_of(self, vhost: Vhost) -> RetainedMessages:
        """Return the retained messages of a vhost; those of one that was opened later may be loading."""
        found = self._retained.get(vhost.name)
        if found is None or found.vhost is not vhost:
            self.load(vhost, nothing)
            found = self._retained[vhost.name]
        return found

    def system_topics_of(self, vhost: Vhost) -> SystemTopics:
        """Return the topics below `$SYS` of a vhost."""
        self.retained_of(vhost)
        return self._system_topics[vhost.name]

    def handshakes_of(self, vhost: Vhost) -> Handshakes:
        """Return the handshakes of a vhost, which are loaded after all else."""
        self.retained_of(vhost)
        return self._handshakes[vhost.name]

    def wills_of(self, vhost: Vhost) -> Wills:
        """Return the delayed wills of a vhost, whose queue is made now or found."""
        found = self._wills.get(vhost.name)
        if found is None:
            found = self._wills[vhost.name] = Wills(self._retained[vhost.name])
        return found

    def end_wait(self, vhost: Vhost, client_id: str, *, clean_start: bool) -> None:
        """Drop the delayed will of a client that connects, or publish it because its session ends."""
        wills = self._wills.get(vhost.name)
        if wills is not None:
            if clean_start:
                wills.publish(client_id)
            else:
                wills.cancel(client_id)


def nothing() -> None:
    """Do nothing."""
