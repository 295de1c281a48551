"""A consumer whose deliveries are PUBLISH packets."""

from __future__ import annotations

from typing import Final

from broker.amqp.connection import Connection
from broker.amqp.framing import LARGE_BYTES
from broker.core.confirmable import Confirmer
from broker.core.deadlines import Clock
from broker.core.message.message import Envelope, Message
from broker.core.mqtt.mapping import SYSTEM_EXCHANGE, MessageMapping
from broker.core.mqtt.packet_ids import PacketIds
from broker.core.mqtt.subscriptions import Match, Subscriptions
from broker.core.queue.consumer import LAST_OCTETS_AGAIN, ChannelConsumers, Consumer
from broker.core.queue.kinds import RETAINED_NAME
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.mqtt.packets import V5
from broker.mqtt.properties import MESSAGE_EXPIRY_S, TOPIC_ALIAS
from broker.mqtt.topics import swapped
from broker.mqtt.wire import OCTETS, binary, varint

PUBLISH: Final = 0x30
QOS0_MAX: Final = 10_000  # messages that may wait for a client that is not reading
SLOW_MS: Final = 100  # between two checks of a client that is not reading
DUP: Final = 0x08
NO_TOPIC: Final = b"\0\0"  # the topic in a packet whose alias the client knows
EXPIRY_MAX_S: Final = 0xFFFF_FFFF


class ClientForm:
    """The form of the packets to a client: the version of MQTT, limits, topic aliases and packet ids.

    Shapes: `aliases` maps topics to their aliases; an alias is negative until the client knows it.
    Units: `window` is the maximum number of unfinished deliveries at QoS 1 and 2, `aliases_max` that of aliases, which
        are assigned to the first topics of the connection.
    """

    __slots__ = ("aliases", "aliases_max", "client_id", "clock", "mapping", "packet_ids", "packet_max_bytes", "version",
                 "window")  # fmt: skip

    def __init__(
        self,
        client_id: str,
        version: int,
        mapping: MessageMapping,
        clock: Clock,
        *,
        packet_max_bytes: int,
        window: int,
        aliases_max: int,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.mapping = mapping
        self.clock = clock
        self.packet_max_bytes = packet_max_bytes
        self.window = window
        self.aliases_max = aliases_max
        self.aliases: dict[bytes, int] = {}
        self.packet_ids = PacketIds()


class UnsyncedDeliveries:
    """Hold back deliveries at QoS 2 until the records of their messages are on disk.

    If a power failure lost a delivered message, its publisher would send it again, and it would be delivered twice.
    Shapes: `_packets` contains the packets that wait, each in two pieces.
    """

    __slots__ = ("_committer", "_connection", "_packets", "confirmed", "logged", "published", "waiting")

    def __init__(self, connection: Connection, committer: Confirmer) -> None:
        self._connection = connection
        self._committer = committer
        self._packets: list[tuple[bytes, bytes]] = []
        self.published = self.logged = self.confirmed = 0
        self.waiting = False

    def add(self, front: bytes, body: bytes) -> None:
        """Send a packet in two pieces after the next sync."""
        self._packets.append((front, body))
        self.published += 1
        self.logged = self.published
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    def confirm(self, upto: int) -> None:
        """Send the packets up to number `upto`."""
        count = upto - self.confirmed
        self.confirmed = upto
        for front, body in self._packets[:count]:
            self._connection.write(front, body)
        del self._packets[:count]


class MqttConsumer(Consumer):
    """Deliver the messages of a queue to an MQTT client; a consumer without acks uses QoS 0.

    A message is delivered at the lower of its own QoS and that of its subscriptions, unless it must be skipped, for
    instance because it is larger than the client accepts. A copy of a retained message has RETAIN set. A delivery at
    QoS 2 is sent once the message's record is on disk, so later messages may overtake it.
    Shapes: `_prefix` contains the properties that depend on the topic: subscription identifiers and alias. `_front` is
        the start of a packet, which messages with the cached envelope and content header share: at QoS 1 and 2 all
        before the packet id, at QoS 0 all before the body, except properties with the seconds until expiry. `_shared`
        contains the options of a shared subscription, whose queue other clients may consume too.
    """

    __slots__ = ("_bare", "_envelope", "_expires", "_form", "_front", "_header", "_match", "_prefix", "_properties",
                 "_qos", "_sets_alias", "_shared", "_skips", "_slow", "_subscriptions", "_topic", "_unsynced",
                 "_vhost")  # fmt: skip

    def __init__(
        self,
        tag: str,
        queue: Queue,
        session: ChannelConsumers,
        vhost: Vhost,
        form: ClientForm,
        subscriptions: Subscriptions,
        shared: Match | None,
        *,
        no_ack: bool,
    ) -> None:
        super().__init__(tag, queue, session, no_ack=no_ack, exclusive=False, arguments={}, prefetch=form.window)
        self._vhost = vhost
        self._form = form
        self._subscriptions = subscriptions
        self._shared = shared
        self._slow = False  # whether a check of a client that is not reading is scheduled
        self._envelope: Envelope | None = None
        self._match: Match | None = None
        self._topic = self._prefix = b""
        self._sets_alias = False  # whether the next packet sends a new alias to the client
        self._skips = False  # whether messages with the cached header are skipped
        self._qos = 0
        self._header = b""
        self._front = self._bare = self._properties = b""
        self._expires = False  # whether the properties contain the seconds until expiry
        self._unsynced: UnsyncedDeliveries | None = None  # created by the first delivery that has to wait

    def forget_match(self) -> None:
        """Forget which subscriptions match, because the subscriptions have changed."""
        self._envelope = None

    def room(self) -> int:
        """Return how many more messages may be sent now; at QoS 1 and 2 the client's queues share its window."""
        room = super().room()
        if self.no_ack:
            if not room and not self._slow and self._shared is None:
                self._slow = True
                self._schedule_check()
            return room
        form = self._form
        if form.packet_ids.blocking:
            return 0
        return max(0, min(room, form.window - self.session.outstanding - form.packet_ids.released))

    def _schedule_check(self) -> None:
        clock = self._form.clock
        self._vhost.ports.deadlines.set((self, "slow"), clock.now_ms + SLOW_MS, self._drop_newest)

    def _drop_newest(self) -> None:
        """Drop the newest messages beyond the limit while the client is not reading, as QoS 0 permits.

        Source: RabbitMQ, rabbit_mqtt_qos0_queue, which also counts them as dead letters for `maxlen`.
        """
        self._slow = False
        level = self.queue.level
        if self.session.consumers.get(self.tag) is not self or self.queue.deleted or super().room():
            return
        excess = self.queue.ready - QOS0_MAX
        for slot in reversed(list(level.manager.slots.values())) if excess > 0 else ():
            ready = tuple(slot.ready_indexes())
            indexes = ready[max(0, len(ready) - excess) :]
            if indexes:
                level.lose(slot, indexes)
                self._vhost.tally.count_dead_letter("maxlen", len(indexes))
                excess -= len(indexes)
            if excess <= 0:
                break
        self._slow = True
        self._schedule_check()

    def append(self, message: Message, header: bytes, tag: int, octets: list[bytes], message_id: int) -> int:
        """Append the PUBLISH packet of a message to the output, unless the message is skipped or has to wait. Return
        the size of the body if it is large, otherwise 0. HOT.
        """
        if message.envelope is not self._envelope:
            self._cache_envelope(message.envelope)
        if header is not self._header:
            self._cache_header(message, header)
        front = self._front
        if self._qos:
            ids = self._form.packet_ids
            if self._shared is not None:  # a redelivery has a new packet id, so DUP is not set
                packet_id = ids.assign_shared(tag)
            else:
                packet_id = ids.assign(tag, message_id)
                if not packet_id:
                    return 0
                if octets is LAST_OCTETS_AGAIN:
                    front = OCTETS[front[0] | DUP] + front[1:]
            properties = self._encode_properties(message) if self._expires else self._properties
            front = b"".join((front, OCTETS[packet_id >> 8], OCTETS[packet_id & 0xFF], properties))
            if self._qos == 2 and self._vhost.store.needs_sync:
                if self._unsynced is None:
                    self._unsynced = UnsyncedDeliveries(self.connection, self._vhost.committer)
                self._unsynced.add(front, message.body)
                return 0
        else:
            if not self.no_ack:
                self._form.packet_ids.unanswered.append(tag)
            if self._skips:
                return 0
            if self._expires:
                front += self._encode_properties(message)
        if self._sets_alias:
            self._note_alias()
        body = message.body
        connection = self.connection
        connection.out.append(front)
        large_bytes = 0
        if body:
            if len(body) >= LARGE_BYTES:
                connection.large_at.append(len(connection.out))
                large_bytes = len(body)
            connection.out.append(body)
        connection.out_bytes += len(front) + len(body)  # hot: set directly
        return large_bytes

    def _cache_envelope(self, envelope: Envelope) -> None:
        """Compute and cache the parts of a packet that depend on the envelope."""
        form = self._form
        self._envelope = envelope
        self._header = b""
        topic = (
            binary(swapped(envelope.key).encode())
            if envelope.exchange == SYSTEM_EXCHANGE
            else form.mapping.topic(envelope.key)
        )
        self._topic = topic
        self._match = match = self._shared
        if match is None and self._subscriptions.matching:
            self._match = match = self._subscriptions.match(envelope.key)
        self._prefix = b"" if match is None else match.identifiers
        self._sets_alias = False
        if form.aliases_max and topic:
            aliases = form.aliases
            alias = aliases.get(topic, 0)
            if not alias and len(aliases) < form.aliases_max:
                aliases[topic] = alias = -1 - len(aliases)
            if alias:
                self._prefix += bytes((TOPIC_ALIAS,)) + abs(alias).to_bytes(2, "big")
                self._sets_alias = alias < 0
                if alias > 0:
                    self._topic = NO_TOPIC

    def _note_alias(self) -> None:
        """Record that the client knows the alias of the topic."""
        form, topic = self._form, self._topic
        form.aliases[topic] = abs(form.aliases[topic])
        self._envelope = None

    def _cache_header(self, message: Message, header: bytes) -> None:
        """Compute and cache the parts of a packet that depend on the cached envelope and a content header."""
        form, match, envelope = self._form, self._match, self._envelope
        self._header = header
        self._skips = not self._topic
        retained = 1 if envelope is not None and envelope.exchange == RETAINED_NAME else 0
        qos = 1
        self._expires = False
        properties = b""
        if match is not None or form.version == V5:
            sent = form.mapping.sent(header)
            if form.version == V5:
                self._bare = sent.properties
                self._expires = message.facts.expiration_ms is not None
                properties = self._encode_properties(message)
            if match is not None:
                self._skips |= match.no_local and sent.client_id == form.client_id
                if sent.is_qos_2:
                    qos = match.qos
                if sent.retain and match.retain_as_published:
                    retained = 1
        if self.no_ack or not message.facts.persistent:
            qos = 0
        size = len(self._topic) + len(properties) + len(message.body) + (2 if qos else 0)
        length = varint(size)
        self._skips |= 1 + len(length) + size > form.packet_max_bytes
        self._qos = 0 if self._skips else qos
        self._properties = properties
        self._front = OCTETS[PUBLISH | qos << 1 | retained] + length + self._topic
        if not qos and not self._expires:
            self._front += properties

    def _encode_properties(self, message: Message) -> bytes:
        """Return the properties of a delivery, encoded after their length."""
        prefix = self._prefix
        if message.facts.expiration_ms is not None:
            left_ms = message.facts.expiration_ms - (self._form.clock.now_ms - message.timestamp_ms)
            left_s = min(max(left_ms, 0) // 1000, EXPIRY_MAX_S)
            prefix += bytes((MESSAGE_EXPIRY_S,)) + left_s.to_bytes(4, "big")
        bare = self._bare
        return varint(len(prefix) + len(bare)) + prefix + bare
