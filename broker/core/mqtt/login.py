"""The login of an MQTT client: check its CONNECT, and compute its credentials and the properties of its CONNACK."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from broker.core.auth.logins import ANONYMOUS, EXTERNAL, PLAIN
from broker.core.auth.peer import Peer
from broker.core.deadlines import Clock
from broker.core.mqtt.consumer import ClientForm
from broker.core.mqtt.context import MqttContext
from broker.core.mqtt.packet_ids import OF_QUEUE_MAX
from broker.core.mqtt.publisher import NO_QOS_2, RECEIVE_MAX, TOPIC_ALIAS_MAX
from broker.core.mqtt.session import CLIENT_ID_MAX_BYTES
from broker.mqtt.errors import PacketError
from broker.mqtt.packets import V5, V311, Connect, Will
from broker.mqtt.properties import (
    ASSIGNED_CLIENT_ID,
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_S,
    TOPIC_ALIAS_MAXIMUM,
    WILL_DELAY_S,
)
from broker.mqtt.reason_codes import (
    BAD_AUTHENTICATION_METHOD,
    BAD_CREDENTIALS,
    CLIENT_ID_INVALID,
    IMPLEMENTATION_ERROR,
    PROTOCOL_ERROR,
    QOS_UNSUPPORTED,
)
from broker.mqtt.wire import VARINT_MAX

ALIASES_MAX: Final = 100  # topic aliases of a connection, at most


def check_connect(connect: Connect, context: MqttContext) -> None:
    """Check a CONNECT. Raises: PacketError."""
    if AUTHENTICATION_METHOD in connect.properties:
        raise PacketError(BAD_AUTHENTICATION_METHOD, "enhanced authentication is not supported")
    if AUTHENTICATION_DATA in connect.properties:
        raise PacketError(PROTOCOL_ERROR, "authentication data without a method")
    if len(connect.client_id.encode()) > CLIENT_ID_MAX_BYTES:
        raise PacketError(CLIENT_ID_INVALID, f"a client id of more than {CLIENT_ID_MAX_BYTES} bytes")
    if not connect.client_id and connect.version == V311 and not connect.clean_start:
        raise PacketError(CLIENT_ID_INVALID, "an empty client id for a session that lasts")
    if connect.will is not None:
        check_will(connect, connect.will, context)


def check_will(connect: Connect, will: Will, context: MqttContext) -> None:
    """Check the QoS, the delay, the topic and the properties of a will. Raises: PacketError."""
    if will.qos > context.qos_max:
        raise PacketError(QOS_UNSUPPORTED, NO_QOS_2)
    if context.qos_max < 2 and will.properties.get(WILL_DELAY_S, 0) and connect.session_expiry_s != 0:
        raise PacketError(IMPLEMENTATION_ERROR, "a cluster delays no will of a session that lasts")
    context.mapping.payload(will.topic)
    context.mapping.will_properties(will.properties, will.qos)


def credentials(connect: Connect, context: MqttContext, peer: Peer, mechanisms: Collection[str]) -> tuple[str, bytes]:
    """Return the SASL mechanism and response for a login. Raises: PacketError 0x86 if the CONNECT lacks credentials."""
    anonymous_user = context.settings.anonymous_user
    if connect.user is not None and connect.password is not None:
        name = context.vhost_and_user(connect.user, peer)[1]
        return PLAIN, b"\0" + name.encode() + b"\0" + connect.password
    is_half = connect.user is not None or connect.password is not None
    if is_half or not (EXTERNAL in mechanisms or anonymous_user):
        raise PacketError(BAD_CREDENTIALS, "no user name and password")
    if peer.certified or not anonymous_user:
        return EXTERNAL, b""
    return ANONYMOUS, anonymous_user.encode()


def session_expiry_s(connect: Connect, context: MqttContext) -> int:
    """Return how long the session outlives its connection: as the client requests, up to the configured maximum."""
    longest_s = context.settings.session_expiry_max_s
    return longest_s if connect.session_expiry_s is None else min(connect.session_expiry_s, longest_s)


def client_form(connect: Connect, context: MqttContext, client_id: str, clock: Clock) -> ClientForm:
    """Return the form of the packets to the client, within the limits of its CONNECT and of the broker."""
    asked, window = connect.properties, min(context.settings.prefetch, OF_QUEUE_MAX)
    return ClientForm(
        client_id,
        connect.version,
        context.mapping,
        clock,
        packet_max_bytes=asked.get(MAXIMUM_PACKET_SIZE, VARINT_MAX + 5),
        window=min(window, asked.get(RECEIVE_MAXIMUM, window)),
        aliases_max=min(ALIASES_MAX, asked.get(TOPIC_ALIAS_MAXIMUM, 0)),
    )


def connack_properties(connect: Connect, context: MqttContext, client_id: str, expiry_s: int) -> dict[int, Any]:
    """Return the properties of a CONNACK, none before MQTT 5: limits, and values that differ from requested ones."""
    if connect.version != V5:
        return {}
    properties: dict[int, Any] = {}
    if expiry_s != connect.session_expiry_s:
        properties[SESSION_EXPIRY_S] = expiry_s
    properties[RECEIVE_MAXIMUM] = RECEIVE_MAX
    if context.qos_max < 2:
        properties[MAXIMUM_QOS] = context.qos_max
    properties[TOPIC_ALIAS_MAXIMUM] = TOPIC_ALIAS_MAX
    properties[MAXIMUM_PACKET_SIZE] = context.settings.packet_max_bytes
    if not connect.client_id:
        properties[ASSIGNED_CLIENT_ID] = client_id
    return properties
