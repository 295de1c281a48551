"""A consumer whose deliveries are PUBLISH packets."""

from __future__ import annotations

from typing import Any, Final

from broker.amqp.framing import LARGE_BYTES
from broker.core.deadlines import Clock
from broker.core.message.message import Envelope, Message
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.packet_ids import PacketIds
from broker.core.queue.consumer import LAST_OCTETS_AGAIN, ChannelConsumers, Consumer
from broker.core.queue.memory_queue import RETAINED_NAME
from broker.core.queue.queue import Queue
from broker.mqtt.packets import V5
from broker.mqtt.properties import MESSAGE_EXPIRY_S
from broker.mqtt.wire import varint

__all__ = ["ClientForm", "MqttConsumer"]

PUBLISH: Final = 0x30
PUBLISH_AT_1: Final = 0x32
PUBLISH_AGAIN: Final = 0x3A
EXPIRY_BYTES: Final = 5
EXPIRY_MAX_S: Final = 0xFFFF_FFFF


class ClientForm:
    """What the packets to a client depend on: its version, the largest that it takes, and the packet ids in use."""

    __slots__ = ("clock", "mapping", "packet_ids", "packet_max_bytes", "version")

    def __init__(self, version: int, packet_max_bytes: int, mapping: MessageMapping, clock: Clock) -> None:
        self.version = version
        self.packet_max_bytes = packet_max_bytes
        self.mapping = mapping
        self.clock = clock
        self.packet_ids = PacketIds()


class MqttConsumer(Consumer):
    """Takes the messages of a session's queue. Its acks are PUBACK packets; without acks it delivers at QoS 0.

    A message is delivered at the lower of its own QoS and its queue's: 1 if it is persistent. One whose key is no topic
    that a subscription may match, and one that is larger than the client takes, is passed over. A copy of a retained
    message has RETAIN set.
    """

    __slots__ = ("_bare", "_envelope", "_form", "_header", "_properties", "_retained", "_topic")

    def __init__(
        self,
        tag: str,
        queue: Queue,
        session: ChannelConsumers,
        form: ClientForm,
        *,
        no_ack: bool,
        arguments: dict[str, Any],
        prefetch: int,
    ) -> None:
        super().__init__(tag, queue, session, no_ack=no_ack, exclusive=False, arguments=arguments, prefetch=prefetch)
        self._form = form
        self._envelope: Envelope | None = None
        self._topic = b""
        self._retained = 0  # the flag RETAIN
        self._header = b""
        self._bare = self._properties = b""

    def append(self, message: Message, header: bytes, tag: int, octets: list[bytes]) -> int:
        """Append the PUBLISH packet of one message to the output, and return the size of its large pieces. HOT."""
        form = self._form
        if message.envelope is not self._envelope:
            self._envelope = message.envelope
            self._topic = form.mapping.topic(message.envelope.key)
            self._retained = 1 if message.envelope.exchange == RETAINED_NAME else 0
        topic = self._topic
        properties = b""
        if form.version == V5:
            if header is not self._header:
                self._header = header
                self._bare = bare = form.mapping.sent_properties(header)
                self._properties = varint(len(bare)) + bare
            properties = self._properties
            if message.facts.expiration_ms is not None:
                properties = self._with_expiry(message)
        body = message.body
        at_1 = not self.no_ack and message.facts.persistent
        size = len(topic) + len(properties) + len(body) + (2 if at_1 else 0)
        if not topic or 1 + len(varint(size)) + size > form.packet_max_bytes:
            if not self.no_ack:
                form.packet_ids.pass_over(tag)
            return 0
        if at_1:
            packet_id = form.packet_ids.give(tag)
            first = (PUBLISH_AGAIN if octets is LAST_OCTETS_AGAIN else PUBLISH_AT_1) | self._retained
            front = b"".join((bytes((first,)), varint(size), topic, packet_id.to_bytes(2, "big"), properties))
        else:
            if not self.no_ack:
                form.packet_ids.pass_over(tag)
            front = b"".join((bytes((PUBLISH | self._retained,)), varint(size), topic, properties))
        connection = self.connection
        connection.out.append(front)
        large_bytes = 0
        if body:
            if len(body) >= LARGE_BYTES:
                connection.large_at.append(len(connection.out))
                large_bytes = len(body)
            connection.out.append(body)
        connection.out_bytes += len(front) + len(body)  # hot: written here
        return large_bytes

    def _with_expiry(self, message: Message) -> bytes:
        """Return the properties with the seconds that a message has left."""
        left_ms = (message.facts.expiration_ms or 0) - (self._form.clock.now_ms - message.timestamp_ms)
        left_s = min(max(left_ms, 0) // 1000, EXPIRY_MAX_S)
        bare = self._bare
        return varint(len(bare) + EXPIRY_BYTES) + bytes((MESSAGE_EXPIRY_S,)) + left_s.to_bytes(4, "big") + bare
