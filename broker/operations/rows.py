"""Rows: one function per kind of object, for the lists of the control socket, the API and the metrics.

Fields that RabbitMQ's API has, too, are named as there. Clients list 10,000 queues, so each microsecond of a queue's
row counts.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from broker.amqp.content_header import decode_properties
from broker.amqp.control import ConnectionState
from broker.core.auth.users import User, Users
from broker.core.definitions.export import json_table, user_fields
from broker.core.queue.consumer import Consumer
from broker.core.queue.queue import Queue
from broker.core.queue.rules import queue_type
from broker.core.session.channel import SessionOfChannel
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.delivery.queue_messages import Peeked
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange
from broker.routing.fanout_exchange import MemoryExchange

Row = dict[str, Any]
BindingEnds = tuple["Vhost", str, Any, str, Mapping[str, Any]]
"""A binding: its vhost, the name of its source, its destination, key and arguments."""
ChannelOf = tuple["SessionOfConnection", int, "SessionOfChannel"]
"""A channel: its connection, number and session."""
INTERNAL_USER: Final = "rmq-internal"  # RabbitMQ's name for the user of objects that no client made
PROPERTIES: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "message_type", "user_id", "app_id", "cluster_id",
)  # fmt: skip


def picked(row: Mapping[str, Any], names: Iterable[str]) -> Row:
    """Return the named fields of a row, in this order."""
    return {name: row[name] for name in names}


# -- queues -----------------------------------------------------------------------------------------------------------


def queue_row(node: str, vhost: Vhost, queue: Queue) -> Row:
    """Return the row of a queue without counts; `node` is the name of this node."""
    kind = queue_type(queue.arguments)
    row = {
        "arguments": json_table(queue.arguments),
        "auto_delete": queue.auto_delete,
        "durable": queue.durable,
        "exclusive": queue.exclusive_owner is not None,
        "name": queue.name,
        "node": node,
        "policy": queue.policy,
        "state": queue_state(queue),
        "type": kind,
        "vhost": vhost.name,
    }
    if kind == "quorum":
        row |= {"leader": node, "members": [node], "online": [node]}
    return row


def queue_state(queue: Queue) -> str:
    """Return the state of a queue: paused or running."""
    return "paused" if queue.paused else "running"


def queue_lengths(queue: Queue) -> Row:
    """Return the numbers of messages and consumers of a queue; in a cluster, as last counted on all nodes."""
    (ready, consumers), unacked, delayed = queue.counts(), queue.held(), queue.delayed
    row: dict[str, Any] = {
        "messages": ready + unacked + delayed,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "messages_delayed": delayed,
        "consumers": consumers,
        "duplicates_dropped": 0 if queue.duplicates is None else queue.duplicates.dropped,
    }
    if queue.strict:
        row["messages_by_priority"] = {str(priority): count for priority, count in queue.ready_by_priority().items()}
    return row


def queue_delays(vhost: Vhost, queue: Queue) -> Row:
    """Return the fields of a queue about delayed messages and delayed retries. Units: times are in ms since 1970."""
    holding, retry, ahead_ms = vhost.delays.of(queue), queue.rules.retry, vhost.ports.clock.ahead_ms
    moments = (None, None) if holding is None else (holding.next_ms, holding.last_ms)
    next_at, last_at = [None if at_ms is None else at_ms - ahead_ms for at_ms in moments]
    text = "disabled" if retry is None else f"{retry.type} (min: {retry.min_ms}ms, max: {retry.max_ms}ms)"
    return {"next_delayed_at": next_at, "last_delayed_at": last_at, "delayed_retry": text}


def active_tag(queue: Queue) -> str | None:
    """Return the tag of the single active consumer, or None if the queue has none."""
    active = queue.consumers.active
    return None if active is None else active.tag


def slot_count(queue: Queue) -> int:
    """Return the number of slots of a queue. Cost: O(levels)."""
    return sum([len(level.manager.slots) for level in queue.all_levels])


# -- exchanges and bindings -------------------------------------------------------------------------------------------


def exchange_row(vhost: Vhost, exchange: Exchange) -> Row:
    """Return the row of an exchange without `message_stats`."""
    row = {
        "arguments": json_table(exchange.arguments),
        "auto_delete": exchange.auto_delete,
        "durable": exchange.durable,
        "internal": exchange.internal,
        "name": exchange.name,
        "type": exchange.type,
        "user_who_performed_action": INTERNAL_USER,
        "vhost": vhost.name,
    }
    memory = exchange.memory if isinstance(exchange, MemoryExchange) else None
    if isinstance(memory, Queue) and memory.duplicates is not None:
        row["duplicates_dropped"] = memory.duplicates.dropped
    return row


def binding_row(ends: BindingEnds, properties_key: str = "") -> Row:
    """Return the row of a binding; `properties_key` identifies it in paths of the API."""
    vhost, source, destination, key, arguments = ends
    return {
        "arguments": json_table(arguments),
        "destination": destination.name,
        "destination_type": "queue" if isinstance(destination, Queue) else "exchange",
        "properties_key": properties_key,
        "routing_key": key,
        "source": source,
        "vhost": vhost.name,
    }


def bindings_of(vhost: Vhost) -> Iterator[BindingEnds]:
    """Yield the bindings of a vhost. Those added or removed during the iteration may or may not be included."""
    for exchange in list(vhost.exchanges.values()):
        yield from bindings_from(vhost, exchange)


def bindings_from(vhost: Vhost, source: Exchange) -> Iterator[BindingEnds]:
    """Yield the bindings from an exchange; from the default exchange, one to each queue that clients may use."""
    if source.name == "":
        for queue in list(vhost.queues.values()):
            yield from default_binding(vhost, queue)
    for bundle in list(source.bundles.values()):
        yield from bundled_bindings(vhost, bundle)


def bundled_bindings(vhost: Vhost, bundle: Bundle[Exchange]) -> Iterator[BindingEnds]:
    """Yield the bindings between a source and a destination. Cost: a list of all of them, made at once."""
    source, destination = bundle.source.name, bundle.destination
    for key, arguments in list(bundle.items()):
        yield vhost, source, destination, key, arguments


def default_binding(vhost: Vhost, destination: Queue | Exchange) -> Iterator[BindingEnds]:
    """Yield the binding of a queue to the default exchange; nothing for exchanges, taps and queues of the overlay."""
    if isinstance(destination, Queue) and not (destination.is_tap or destination.is_overlay):
        yield vhost, "", destination, destination.name, {}


# -- users ------------------------------------------------------------------------------------------------------------


def user_row(users: Users, user: User) -> Row:
    """Return the row of a user, with the hash of the password."""
    return {**user_fields(user.to_json()), "of_settings": users.is_configured(user.name)}


# -- clients ----------------------------------------------------------------------------------------------------------


def user_name(session: SessionOfConnection) -> str:
    """Return the name of a connection's user, or an empty string before the login."""
    return "" if session.user is None else session.user.name


def vhost_name(session: SessionOfConnection) -> str:
    """Return the name of a connection's vhost, or an empty string before it is opened."""
    return "" if session.vhost is None else session.vhost.name


def connection_name(session: SessionOfConnection) -> str | None:
    """Return the name that the client gave to a connection, or None."""
    name = session.connection.client_properties.get("connection_name")
    return name if isinstance(name, str) else None


def connection_row(node: str, session: SessionOfConnection, *, blocked: bool) -> Row:
    """Return the row of a connection without rates."""
    connection, peer = session.connection, session.peer
    user = user_name(session)
    return {
        "auth_mechanism": session.mechanism,
        "channel_max": connection.channel_max,
        "channels": len(connection.channels),
        "client_id": None if connection.client_facts is None else connection.client_facts["client_id"],
        "client_properties": json_table(connection.client_properties),
        "connected_at": session.connected_ms,
        "frame_max": connection.frame_max,
        "host": peer.server_address,
        "mqtt": connection.client_facts,
        "name": session.name,
        "node": node,
        "peer_host": peer.address,
        "peer_port": peer.port,
        "port": peer.server_port,
        "protocol": f"Web {connection.protocol}" if peer.web else connection.protocol,  # RabbitMQ's words
        "publishes_lost": 0 if session.vhost is None else session.vhost.tally.lost.of(session.name, user),
        "recv_cnt": 0,
        "send_cnt": 0,
        "send_pend": connection.out_bytes,
        "state": _connection_state(session, blocked=blocked),
        "timeout": connection.heartbeat_s,
        "type": "direct" if peer.inside else "network",
        "user": user,
        "user_provided_name": connection_name(session),
        "user_who_performed_action": user,
        "vhost": vhost_name(session),
    }


def _connection_state(session: SessionOfConnection, *, blocked: bool) -> str:
    state = session.connection.state
    if state is not ConnectionState.RUNNING:
        return state.name.lower()
    if blocked:
        return "blocked"
    if session.drains:
        return "draining"
    return "running" if session.output_window.writable else "flow"


def channels_of(sessions: Iterable[SessionOfConnection]) -> Iterator[ChannelOf]:
    """Yield the channels of connections."""
    for session in sessions:
        for number, channel in list(session.connection.channels.items()):
            yield session, number, cast("SessionOfChannel", channel.session)


def channel_name(channel: ChannelOf) -> str:
    """Return the name of a channel: its connection's name and its number."""
    return f"{channel[0].name} ({channel[1]})"


def channel_row(node: str, channel: ChannelOf, stats: Mapping[str, Any]) -> Row:
    """Return the row of a channel; `stats` are its message statistics."""
    session, number, inner = channel
    basic, confirms, transactions = inner.basic, inner.publisher.confirms, inner.transactions
    peer, user = session.peer, user_name(session)
    return {
        "acks_uncommitted": 0 if transactions is None else len(transactions.acknowledgements),
        "confirm": confirms.confirming,
        "connection_details": {"name": session.name, "peer_host": peer.address, "peer_port": peer.port},
        "consumer_count": len(basic.consumers),
        "global_prefetch_count": basic.prefetch_channel,
        "message_stats": stats,
        "messages_unacknowledged": basic.unacked.count + basic.unacked.aside_count,
        "messages_uncommitted": 0 if transactions is None else len(transactions.publications),
        "messages_unconfirmed": confirms.published - confirms.confirmed,
        "name": channel_name(channel),
        "node": node,
        "number": number,
        "pending_raft_commands": 0,
        "prefetch_count": basic.prefetch_consumer,
        "publishes_lost": inner.publisher.tally.lost,
        "state": "closing" if inner.closed else "running",
        "transactional": transactions is not None,
        "user": user,
        "user_who_performed_action": user,
        "vhost": vhost_name(session),
    }


def consumers_of(queue: Queue) -> Sequence[Consumer]:
    """Return the consumers of a queue."""
    return cast("Sequence[Consumer]", list(queue.consumers))


def consumer_row(node: str, vhost: Vhost, queue: Queue, consumer: Consumer) -> Row:
    """Return the row of a consumer."""
    session = cast("SessionOfConnection", consumer.connection.session)
    number = consumer.session.number
    active = queue.consumers.active
    return {
        "ack_required": not consumer.no_ack,
        "active": active is None or active is consumer,
        "activity_status": "up" if active is None else "single_active" if active is consumer else "waiting",
        "arguments": json_table(consumer.arguments),
        "channel_details": {
            "connection_name": session.name,
            "name": f"{session.name} ({number})",
            "node": node,
            "number": number,
            "peer_host": session.peer.address,
            "peer_port": session.peer.port,
            "user": user_name(session),
        },
        "consumer_tag": consumer.tag,
        "exclusive": consumer.exclusive,
        "messages_unacknowledged": consumer.unacked,
        "prefetch_count": consumer.prefetch,
        "priority": consumer.priority,
        "queue": {"name": queue.name, "vhost": vhost.name},
    }


def message_row(message: Peeked, body_max_bytes: int) -> dict[str, Any]:
    """Return a message as JSON: its body as text if it is UTF-8, else in base64."""
    return {
        "id": message.message_id,
        "priority_level": message.priority_level,
        "exchange": message.exchange,
        "routing_key": message.key,
        "redelivered": message.redelivered,
        "properties": properties_row(message.header),
        **body_fields(message.body, body_max_bytes),
    }


def body_fields(content: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the fields of a body, showing up to `max_bytes` of it."""
    shown = content[:max_bytes]
    try:
        body, encoding = _text(shown, complete=len(shown) == len(content)), "utf-8"
    except UnicodeDecodeError:
        body, encoding = b64encode(shown).decode(), "base64"
    return {
        "body_bytes": len(content),
        "body_complete": len(shown) == len(content),
        "body_encoding": encoding,
        "body": body,
    }


def _text(shown: bytes, *, complete: bool) -> str:
    """Return the text, without a character that was cut in two. Raises: UnicodeDecodeError."""
    try:
        return shown.decode()
    except UnicodeDecodeError as error:
        if complete or len(shown) - error.start > 3 or error.reason != "unexpected end of data":
            raise
        return shown[: error.start].decode()


def properties_row(header: bytes) -> dict[str, Any]:
    """Return the properties of a content header, except empty ones."""
    decoded = decode_properties(header)
    found = {name: getattr(decoded, name, None) for name in PROPERTIES}
    return json_table({name: value for name, value in found.items() if value not in (None, "")})
