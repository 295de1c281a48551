"""Map MQTT messages to AMQP messages and back: topics to routing keys, properties to content headers.

Source: RabbitMQ, mc_mqtt and rabbit_mqtt_util, except for topics with dots and routing keys with slashes.
"""

from __future__ import annotations

from typing import Any, Final

from broker.amqp.content_header import decode_properties, remember
from broker.amqp.framing import PUBLISH
from broker.amqp.header_edit import BASIC, FRONT, cut_properties, encode_header
from broker.amqp.header_facts import EXPIRATION_MAX_MS
from broker.amqp.table_writer import encode_entry
from broker.amqp.tables import LONG_STRING, TableReader
from broker.amqp.wire import PROPERTIES_AT, SHORT_STRING_MAX_BYTES
from broker.mqtt.errors import PacketError
from broker.mqtt.packets import read_publish_properties
from broker.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_S,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    TOPIC_ALIAS,
    USER_PROPERTY,
    encode_properties,
)
from broker.mqtt.reason_codes import IMPLEMENTATION_ERROR
from broker.mqtt.topics import binding_key, routing_key, topic_of
from broker.mqtt.wire import TEXT_MAX_BYTES, binary
from broker.routing.pattern import AMQP, MQTT, TopicDialect

EXCHANGE: Final = "amq.topic"
SYSTEM_EXCHANGE: Final = "$SYS"  # named in the envelopes of `$SYS` messages; there is no such exchange
KNOWN_MAX: Final = 4096  # entries of each cache
KNOWN_MAX_BYTES: Final = 512  # larger properties are not cached
NO_ALIAS: Final = -1
TRANSIENT: Final = 1
PERSISTENT: Final = 2
FORMAT_HEADER: Final = "x-payload-format-indicator"
CORRELATION_HEADER: Final = "x-correlation-id"
REPLY_HEADER: Final = "x-reply-to-topic"
RETAIN_HEADER: Final = "x-mqtt-retain"
QOS_HEADER: Final = "x-mqtt-publish-qos"  # only for QoS 2; the delivery mode distinguishes QoS 0 and 1
CLIENT_HEADER: Final = "x-mqtt-client-id"
RETAIN_BYTES: Final = RETAIN_HEADER.encode()
QOS_BYTES: Final = QOS_HEADER.encode()
CLIENT_BYTES: Final = CLIENT_HEADER.encode()
BOOLEAN: Final = ord("t")
NOTHING: Final[dict[int, Any]] = {}
NO_TABLE: Final = bytes(4)


class SentHeader:
    """The MQTT properties and flags of messages with equal AMQP properties.

    Shapes: `properties` contains the encoded properties of an MQTT 5 PUBLISH, without their length and the expiry.
        `client_id` is set if the publisher has a subscription that excludes its own publishes.
    """

    __slots__ = ("client_id", "is_qos_2", "properties", "retain")

    def __init__(self, header: bytes, swaps: bool) -> None:
        self.properties = encode_properties(message_properties(header, swaps))
        self.is_qos_2 = self.retain = False
        self.client_id = ""
        table = cut_properties(header).get("headers", NO_TABLE)
        for entry in TableReader(table).entries(0):
            kind = table[entry.value_at]
            if entry.key == RETAIN_BYTES:
                self.retain = kind == BOOLEAN and table[entry.value_at + 1] == 1
            elif entry.key == QOS_BYTES:
                self.is_qos_2 = kind != LONG_STRING and table[entry.end - 1] == 2
            elif entry.key == CLIENT_BYTES and kind == LONG_STRING:
                self.client_id = table[entry.value_at + 5 : entry.end].decode(errors="replace")


class MessageMapping:
    """Map messages, and cache parts that many messages share; all connections use one object. `swaps` is set if slashes
    in topics become dots in routing keys, and dots slashes.
    Invariant: each cache has at most `KNOWN_MAX` entries; a full one is cleared.
    """

    def __init__(self, levels_max: int, exchange: str = EXCHANGE) -> None:
        self.levels_max = levels_max
        self.exchange = exchange
        self.swaps = exchange == EXCHANGE
        self.dialect: TopicDialect = AMQP if self.swaps else MQTT
        self._payloads: dict[bytes, bytes] = {}
        self._headers: dict[tuple[bytes, int], bytes] = {}
        self._properties: dict[tuple[bytes, int, bool, str], tuple[bytes, int]] = {}
        self._topics: dict[str, bytes] = {}
        self._sent: dict[bytes, SentHeader] = {}

    def routing_key(self, topic: bytes) -> str:
        """Return the routing key of a topic. Raises: PacketError for an invalid topic."""
        return routing_key(topic, self.levels_max, self.swaps)

    def binding_key(self, topic_filter: str) -> str:
        """Return the binding key of a topic filter. Raises: PacketError for an invalid filter."""
        return binding_key(topic_filter, self.levels_max, self.swaps)

    # -- from MQTT ----------------------------------------------------------------------------------------------------

    def payload(self, topic: bytes) -> bytes:
        """Return the basic.publish payload for a publish to a topic. HOT. Raises: PacketError for an invalid topic."""
        found = self._payloads.get(topic)
        if found is None:
            key = self.routing_key(topic).encode()
            name = self.exchange.encode()
            found = b"".join((PUBLISH, b"\0\0", bytes((len(name),)), name, bytes((len(key),)), key, b"\0"))
            remember(self._payloads, topic, found, KNOWN_MAX)
        return found

    def properties(self, octets: bytes, qos: int, retain: bool = False, client_id: str = "") -> tuple[bytes, int]:
        """Return a content header's properties for the encoded properties of a publish, and its alias or `NO_ALIAS`.

        Shapes: `client_id` is empty unless deliveries need it.
        Raises: PacketError for properties that are invalid or that a content header cannot represent.
        """
        key = (octets, qos, retain, client_id)
        found = self._properties.get(key)
        if found is None:
            read = read_publish_properties(octets) if octets else NOTHING
            found = content_properties(read, qos, retain, client_id, self.swaps), read.get(TOPIC_ALIAS, NO_ALIAS)
            if len(octets) <= KNOWN_MAX_BYTES:
                remember(self._properties, key, found, KNOWN_MAX)
        return found

    def will_properties(self, properties: dict[int, Any], qos: int, retain: bool = False, client_id: str = "") -> bytes:
        """Return the encoded properties of a will's content header. Raises: PacketError."""
        return content_properties(properties, qos, retain, client_id, self.swaps)

    def header(self, properties: bytes, body_bytes: int) -> bytes:
        """Return the content header for properties and a body size; equal headers are usually one object. HOT."""
        key = (properties, body_bytes)
        found = self._headers.get(key)
        if found is None:
            found = FRONT.pack(BASIC, 0, body_bytes) + properties
            if len(properties) <= KNOWN_MAX_BYTES:
                remember(self._headers, key, found, KNOWN_MAX)
        return found

    # -- to MQTT ------------------------------------------------------------------------------------------------------

    def topic(self, key: str) -> bytes:
        """Return the topic of a routing key, encoded with its length; empty if the key corresponds to no topic."""
        found = self._topics.get(key)
        if found is None:
            topic = topic_of(key, self.swaps)
            found = b"" if topic is None else binary(topic)
            remember(self._topics, key, found, KNOWN_MAX)
        return found

    def sent(self, header: bytes) -> SentHeader:
        """Return the MQTT properties and flags for a content header."""
        properties = header[PROPERTIES_AT:]
        found = self._sent.get(properties)
        if found is None:
            found = SentHeader(header, self.swaps)
            if len(properties) <= KNOWN_MAX_BYTES:
                remember(self._sent, properties, found, KNOWN_MAX)
        return found


def content_properties(
    properties: dict[int, Any], qos: int, retain: bool = False, client_id: str = "", swaps: bool = True
) -> bytes:
    """Return the flags and properties of a content header for MQTT 5 properties.

    User properties become text headers in their order, including repeated ones. Raises: PacketError for a property that
    a content header cannot represent, and for a response topic to which no client could publish.
    """
    values: dict[str, Any] = {"delivery_mode": PERSISTENT if qos else TRANSIENT}
    entries: list[tuple[str, Any]] = []
    if CONTENT_TYPE in properties:
        values["content_type"] = properties[CONTENT_TYPE]
    if MESSAGE_EXPIRY_S in properties:
        values["expiration"] = str(min(properties[MESSAGE_EXPIRY_S] * 1000, EXPIRATION_MAX_MS))
    if CORRELATION_DATA in properties:
        data: bytes = properties[CORRELATION_DATA]
        if len(data) <= SHORT_STRING_MAX_BYTES and is_text(data):
            values["correlation_id"] = data.decode()
        else:
            entries.append((CORRELATION_HEADER, data))
    if RESPONSE_TOPIC in properties:
        topic: str = properties[RESPONSE_TOPIC]
        entries.append((REPLY_HEADER, routing_key(topic.encode(), TEXT_MAX_BYTES, swaps)))
    if properties.get(PAYLOAD_FORMAT) == 1:
        entries.append((FORMAT_HEADER, 1))
    if qos > 1:
        entries.append((QOS_HEADER, qos))
    if retain:
        entries.append((RETAIN_HEADER, True))
    if client_id:
        entries.append((CLIENT_HEADER, client_id))
    entries += properties.get(USER_PROPERTY, [])
    try:
        if entries:
            values["headers"] = b"".join([encode_entry(name, value) for name, value in entries])
        return encode_header(values, 0)[PROPERTIES_AT:]
    except ValueError as error:
        raise PacketError(IMPLEMENTATION_ERROR, f"a property that AMQP cannot represent: {error}") from None


def message_properties(header: bytes, swaps: bool = True) -> dict[int, Any]:
    """Return the MQTT 5 properties for a content header, without the expiry. Text headers become user properties if
    MQTT can represent them, except those that `content_properties` adds.
    """
    values: dict[int, Any] = {}
    read = decode_properties(header)
    if read.content_type:
        values[CONTENT_TYPE] = read.content_type.replace("\0", "")
    if read.correlation_id:
        values[CORRELATION_DATA] = read.correlation_id.encode()
    table = cut_properties(header).get("headers", NO_TABLE)
    users: list[tuple[str, str]] = []
    for entry in TableReader(table).entries(0):
        if table[entry.value_at] != LONG_STRING:
            if entry.key == FORMAT_HEADER.encode():
                values[PAYLOAD_FORMAT] = 1
            continue
        octets = table[entry.value_at + 5 : entry.end]
        if len(octets) > TEXT_MAX_BYTES or entry.key == CLIENT_BYTES:
            continue
        if entry.key == CORRELATION_HEADER.encode():
            values[CORRELATION_DATA] = octets
        elif is_text(octets) and is_text(entry.key):
            text = octets.decode()
            if entry.key == REPLY_HEADER.encode():
                topic = topic_of(text, swaps)
                if topic is not None:
                    values[RESPONSE_TOPIC] = topic.decode()
            else:
                users.append((entry.key.decode(), text))
    if users:
        values[USER_PROPERTY] = users
    return values


def is_text(octets: bytes) -> bool:
    """Return whether octets are a valid string in MQTT."""
    try:
        return "\0" not in octets.decode()
    except UnicodeDecodeError:
        return False
