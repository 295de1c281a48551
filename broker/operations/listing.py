"""`list_*`: one row for each object, with most columns named as in rabbitmqctl."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from broker.administration.administration import Administration
from broker.administration.deciding import count_all
from broker.administration.slices import in_slices
from broker.core.queue.consumer import Consumer
from broker.core.queue.queue import Queue
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import ADMINISTRATOR, MONITORING, Operation
from broker.operations.queue_readings import QueueBytes, Rates
from broker.operations.request import ROWS_AT_ONCE, Asker, OfVhosts, parameters
from broker.operations.rows import (
    Row,
    active_tag,
    binding_row,
    bindings_of,
    channel_row,
    channels_of,
    connection_row,
    consumer_row,
    consumers_of,
    exchange_row,
    picked,
    queue_delays,
    queue_lengths,
    queue_row,
    slot_count,
    user_row,
)
from broker.routing.exchange import Exchange

QUEUE: Final = (
    *("vhost", "name", "messages_ready", "messages_unacknowledged", "messages", "consumers", "state", "policy"),
    *("operator_policy", "durable", "auto_delete", "exclusive", "arguments", "single_active_consumer_tag", "slots"),
    *("messages_by_priority", "duplicates_dropped"),
    *("messages_delayed", "next_delayed_at", "last_delayed_at", "delayed_retry"),
)
EXCHANGE: Final = (
    *("vhost", "name", "type", "durable", "auto_delete", "internal", "policy", "topic_index", "arguments"),
    "duplicates_dropped",
)
BINDING: Final = ("vhost", "source", "destination", "destination_type", "routing_key", "arguments")
CONSUMER: Final = (
    *("vhost", "queue", "consumer_tag", "connection", "channel", "ack_required", "prefetch_count", "active"),
    *("exclusive", "priority", "messages_unacknowledged", "arguments"),
)
CONNECTION: Final = (
    *("name", "user", "vhost", "state", "channels", "peer_host", "peer_port", "host", "port", "ssl", "frame_max"),
    *("channel_max", "timeout", "recv_oct", "send_oct", "publishes_lost", "connection_name", "client_properties"),
    *("protocol", "client_id", "mqtt"),
)
CHANNEL: Final = (
    *("connection", "number", "user", "vhost", "consumer_count", "messages_unacknowledged", "prefetch_count"),
    *("global_prefetch_count", "confirm", "transactional", "publishes_lost"),
)
USER: Final = ("name", "tags", "of_settings", "limits")
POLICY: Final = ("vhost", "name", "pattern", "apply_to", "definition", "priority")
MESSAGES_AT_ONCE: Final = 10_000  # measured between two turns of the loop


@parameters
class ListQueues(OfVhosts):
    """The vhosts whose queues are listed, and the optional columns that cost more: rates and bytes of messages."""

    rates: bool = False
    bytes: bool = False


def _sessions(broker: OperatedBroker, name: str | None) -> list[SessionOfConnection]:
    broker.vhosts(name)
    found = [one for one in broker.sessions() if name is None or (one.vhost is not None and one.vhost.name == name)]
    return sorted(found, key=lambda one: one.name)


def _of_vhosts(rows: Callable[[Vhost], Iterable[Row]], tag: str = ADMINISTRATOR) -> Operation[OfVhosts]:
    """Return the operation that lists objects of vhosts, as `rows` yields them."""

    async def list_rows(broker: OperatedBroker, asked: OfVhosts, asker: Asker) -> list[Row]:
        return await gather((row for vhost in broker.vhosts(asked.vhost) for row in rows(vhost)), asker)

    return Operation(list_rows, OfVhosts, tag=tag)


async def list_queues(broker: OperatedBroker, asked: ListQueues, asker: Asker) -> list[Row]:
    """List the queues."""
    found = [(vhost, queue) for vhost in broker.vhosts(asked.vhost) for queue in vhost.queues.values()]
    rates: list[Rates | None] = []
    if asked.rates:
        keys = [(vhost.name, queue.number) for vhost, queue in found]
        measured = await broker.listed_rates.measure({key: queue for key, (_, queue) in zip(keys, found, strict=True)})
        rates = [measured.get(key) for key in keys]
    await count_all([queue for _vhost, queue in found])
    rows = await gather((queue_listed(vhost, queue) for vhost, queue in found), asker)
    for row, rate in zip(rows, rates, strict=False):
        if rate is not None:
            row.update({f"{kind}_rate": value for kind, value in rate._asdict().items()})
    if asked.bytes:
        for row, (_vhost, queue) in zip(rows, found, strict=True):
            row.update(bytes_fields(await count_bytes(queue)))
    return rows


async def list_connections(broker: OperatedBroker, asked: OfVhosts, asker: Asker) -> list[Row]:
    """List the connections of this node."""
    blocked = set(broker.blocked_sessions())
    sessions = _sessions(broker, asked.vhost)
    return await gather((connection_listed(session, blocked=session in blocked) for session in sessions), asker)


async def list_channels(broker: OperatedBroker, asked: OfVhosts, asker: Asker) -> list[Row]:
    """List the channels of this node."""
    return await gather((row for session in _sessions(broker, asked.vhost) for row in channel_rows(session)), asker)


async def list_vhosts(broker: OperatedBroker, asked: OfVhosts, asker: Asker) -> list[Row]:
    """List the vhosts, including those that are down."""
    administration = broker.administration
    connected = [session.vhost for session in broker.sessions()]
    rows: Iterable[Row] = (
        {
            **administration.vhost_fields(vhost.name),
            "state": "running",
            "limits": administration.vhost_limits(vhost.name),
            "queues": len(vhost.queues),
            "messages": sum(queue.waiting + queue.unacked for queue in vhost.queues.values()),
            "connections": connected.count(vhost),
            "tracing": vhost.firehose.publishing,
        }
        for vhost in broker.vhosts(asked.vhost)
    )
    return await gather(chain(rows, offline_rows(administration)) if asked.vhost is None else rows, asker)


def list_permissions(broker: OperatedBroker, asked: OfVhosts, _asker: Asker) -> list[dict[str, str]]:
    """List the permissions."""
    broker.vhosts(asked.vhost)
    return broker.permissions.listing(vhost=asked.vhost)


def list_topic_permissions(broker: OperatedBroker, asked: OfVhosts, _asker: Asker) -> list[dict[str, str]]:
    """List the topic permissions."""
    broker.vhosts(asked.vhost)
    return broker.permissions.topics.listing(vhost=asked.vhost)


def list_users(broker: OperatedBroker, _asked: OfVhosts, _asker: Asker) -> list[Row]:
    """List the users."""
    users = broker.administration.users
    return [picked(user_row(users, user), USER) for user in users.listing()]


def offline_rows(administration: Administration) -> Iterator[Row]:
    """Yield a row for each vhost that is down."""
    for name, reason in sorted(administration.vhosts.offline.items()):
        yield {
            **administration.vhost_fields(name),
            "state": "down",
            "reason": reason,
            "limits": administration.vhost_limits(name),
            "connections": 0,
        }


async def gather(rows: Iterable[Row], asker: Asker) -> list[Row]:
    """Return the rows, generated in slices. Raises: ConnectionError once the client has disconnected."""
    found: list[Row] = []
    async for row in in_slices(rows, ROWS_AT_ONCE):
        found.append(row)
        if len(found) % ROWS_AT_ONCE == 0 and asker.is_gone():
            raise ConnectionError("the client has disconnected")
    return found


def queue_listed(vhost: Vhost, queue: Queue) -> Row:
    """Return the row of a queue."""
    row = queue_row("", vhost, queue) | queue_lengths(queue) | queue_delays(vhost, queue)
    row["operator_policy"] = queue.operator_policy
    row["single_active_consumer_tag"] = active_tag(queue)
    row["slots"] = slot_count(queue)
    row.setdefault("messages_by_priority", {})
    return picked(row, QUEUE)


async def count_bytes(queue: Queue, limit: int | None = None) -> QueueBytes:
    """Return the bytes of a queue's messages; stop once `limit` messages are counted. Cost: O(messages), in slices."""
    counted = QueueBytes()
    slice_messages = 0
    for length in counted.count(queue):
        slice_messages += length
        if limit is not None and counted.messages >= limit:
            break
        if slice_messages > MESSAGES_AT_ONCE:
            slice_messages = 0
            await asyncio.sleep(0)
    return counted


def bytes_fields(counted: QueueBytes) -> Row:
    """Return the bytes of a queue's messages under rabbitmqctl's names."""
    return {
        "message_bytes": counted.ready + counted.unacked,
        "message_bytes_ready": counted.ready,
        "message_bytes_unacknowledged": counted.unacked,
        "message_bytes_persistent": counted.persistent,
    }


def exchange_listed(vhost: Vhost, exchange: Exchange) -> Row:
    """Return the row of an exchange."""
    policy = vhost.policies.of(exchange.name)
    row = exchange_row(vhost, exchange)
    row["policy"] = None if policy is None else policy.name
    row["topic_index"] = exchange.index_name
    row.setdefault("duplicates_dropped", 0)
    return picked(row, EXCHANGE)


def consumer_listed(vhost: Vhost, queue: Queue, consumer: Consumer) -> Row:
    """Return the row of a consumer."""
    row = consumer_row("", vhost, queue, consumer)
    channel = row["channel_details"]
    named = {"vhost": vhost.name, "queue": queue.name}
    return picked({**row, **named, "connection": channel["connection_name"], "channel": channel["number"]}, CONSUMER)


def connection_listed(session: SessionOfConnection, *, blocked: bool) -> Row:
    """Return the row of a connection."""
    row = connection_row("", session, blocked=blocked)
    return picked(
        {
            **row,
            "user": row["user"] or None,
            "vhost": row["vhost"] or None,
            "state": "running" if row["state"] == "flow" else row["state"],
            "ssl": session.peer.tls is not None,
            "recv_oct": session.connection.received,
            "send_oct": session.connection.sent,
            "connection_name": row["user_provided_name"],
        },
        CONNECTION,
    )


def channel_rows(session: SessionOfConnection) -> Iterator[Row]:
    """Yield the rows of a connection's channels, sorted by number."""
    for channel in sorted(channels_of([session]), key=lambda one: one[1]):
        row = channel_row("", channel, {})
        named = {"connection": session.name, "user": row["user"] or None, "vhost": row["vhost"] or None}
        yield picked({**row, **named}, CHANNEL)


def policy_rows(vhost: Vhost, *, operator: bool) -> Iterator[Row]:
    """Yield the rows of a vhost's policies."""
    for policy in vhost.policies.list(operator=operator):
        row = policy.row(vhost.name)
        yield picked({**row, "apply_to": row["apply-to"]}, POLICY)


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "list_queues": Operation(list_queues, ListQueues, tag=MONITORING),
    "list_exchanges": _of_vhosts(
        lambda vhost: (exchange_listed(vhost, one) for one in list(vhost.exchanges.values())), MONITORING
    ),
    "list_bindings": _of_vhosts(
        lambda vhost: (picked(binding_row(one), BINDING) for one in bindings_of(vhost)), MONITORING
    ),
    "list_consumers": _of_vhosts(
        lambda v: (consumer_listed(v, queue, one) for queue in list(v.queues.values()) for one in consumers_of(queue)),
        MONITORING,
    ),
    "list_connections": Operation(list_connections, OfVhosts, tag=MONITORING),
    "list_channels": Operation(list_channels, OfVhosts, tag=MONITORING),
    "list_users": Operation(list_users, OfVhosts),
    "list_vhosts": Operation(list_vhosts, OfVhosts, tag=MONITORING),
    "list_permissions": Operation(list_permissions, OfVhosts),
    "list_topic_permissions": Operation(list_topic_permissions, OfVhosts),
    "list_policies": _of_vhosts(lambda vhost: policy_rows(vhost, operator=False)),
    "list_operator_policies": _of_vhosts(lambda vhost: policy_rows(vhost, operator=True)),
}
