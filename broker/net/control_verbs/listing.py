"""`list_*`: one row per object, with rabbitmqctl's names for the columns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from broker.administration.deciding import count_all
from broker.amqp.control import ConnectionState
from broker.core.definitions.export import json_table
from broker.core.queue.queue import Queue
from broker.core.queue.queue_bytes import QueueBytes
from broker.net.control_request import ROWS_AT_ONCE, Request, Verb
from broker.net.control_verbs.queue_rates import QueueRates
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.queue.consumer import Consumer
    from broker.core.session.channel import SessionOfChannel
    from broker.core.session.connection import SessionOfConnection
    from broker.core.vhost import Vhost
    from broker.net.listener import Listener
    from broker.routing.binding import Binding
    from broker.routing.exchange import Exchange

__all__ = ["listing_verbs"]

MESSAGES_AT_ONCE: Final = 10_000  # bodies that are measured between two turns of the loop
Row = dict[str, Any]


def listing_verbs(administration: Administration, listener: Listener) -> dict[str, Verb]:
    """Return the verbs."""
    permissions = administration.permissions
    seen = QueueRates()

    def chosen(request: Request) -> list[Vhost]:
        name = request.optional("vhost")
        if name is None:
            return [administration.vhosts[name] for name in sorted(administration.vhosts)]
        return [vhost_of(request, administration)]

    def sessions(request: Request) -> list[SessionOfConnection]:
        name = request.optional("vhost")
        chosen(request)
        return sorted(
            (one for one in listener.sessions() if name is None or (one.vhost is not None and one.vhost.name == name)),
            key=lambda one: one.name,
        )

    def connections(request: Request) -> Any:
        blocked = set(listener.blocked_sessions())
        return gather(connection_row(session, blocked=session in blocked) for session in sessions(request))

    def of_vhosts(rows: Callable[[Vhost], Iterable[Row]]) -> Verb:
        return lambda request: gather(row for vhost in chosen(request) for row in rows(vhost))

    def of_sessions(rows: Callable[[SessionOfConnection], Iterable[Row]]) -> Verb:
        return lambda request: gather(row for session in sessions(request) for row in rows(session))

    async def queues(request: Request) -> list[Row]:
        found = {
            (vhost.name, queue.number): (vhost, queue) for vhost in chosen(request) for queue in vhost.queues.values()
        }
        rates = (
            await seen.measure({key: queue for key, (_vhost, queue) in found.items()}) if request.flag("rates") else {}
        )
        await count_all([queue for _vhost, queue in found.values()])
        rows = await gather(queue_row(vhost, queue) for vhost, queue in found.values())
        for (key, (_vhost, queue)), row in zip(found.items(), rows, strict=True):
            if key in rates:
                row.update({f"{kind}_rate": rate for kind, rate in rates[key]._asdict().items()})
            if request.flag("bytes"):
                row.update(bytes_fields(await count_bytes(queue)))
        return rows

    def vhosts(request: Request) -> Any:
        connected = [session.vhost for session in listener.sessions()]
        rows: Iterable[Row] = (
            {
                **administration.vhost_fields(vhost.name),
                "state": "running",
                "limits": administration.vhost_limits(vhost.name),
                "queues": len(vhost.queues),
                "messages": sum(queue.ready + queue.unacked for queue in vhost.queues.values()),
                "connections": connected.count(vhost),
                "tracing": vhost.firehose.publishing,
            }
            for vhost in chosen(request)
        )
        return gather(chain(rows, offline_rows(administration)) if request.optional("vhost") is None else rows)

    def rights(request: Request, listing: Callable[..., Any]) -> Any:
        chosen(request)
        return listing(vhost=request.optional("vhost"))

    def users(_request: Request) -> list[Row]:
        return [
            {
                "name": user.name,
                "tags": list(user.tags),
                "of_settings": administration.users.is_configured(user.name),
                "limits": user.limits.to_json(),
            }
            for user in administration.users.listing()
        ]

    return {
        "list_queues": queues,
        "list_exchanges": of_vhosts(lambda v: (exchange_row(v, one) for one in list(v.exchanges.values()))),
        "list_bindings": of_vhosts(binding_rows),
        "list_consumers": of_vhosts(consumer_rows),
        "list_connections": connections,
        "list_channels": of_sessions(channel_rows),
        "list_users": users,
        "list_vhosts": vhosts,
        "list_permissions": lambda request: rights(request, permissions.listing),
        "list_topic_permissions": lambda request: rights(request, permissions.topics.listing),
        "list_policies": of_vhosts(lambda vhost: policy_rows(vhost, operator=False)),
        "list_operator_policies": of_vhosts(lambda vhost: policy_rows(vhost, operator=True)),
    }


def offline_rows(administration: Administration) -> Iterator[Row]:
    """Yield a row for each vhost that is down."""
    for name, offline in sorted(administration.vhosts.offline.items()):
        yield {
            **administration.vhost_fields(name),
            "state": "down",
            "reason": offline.reason,
            "limits": administration.vhost_limits(name),
            "connections": 0,
        }


async def gather(rows: Iterable[Row]) -> list[Row]:
    """Return the rows, yielding to the loop from time to time."""
    gathered: list[Row] = []
    for row in rows:
        gathered.append(row)
        if len(gathered) % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return gathered


def queue_row(vhost: Vhost, queue: Queue) -> Row:
    """Return the row of a queue."""
    (ready, consumers), unacked = queue.counts(), queue.held()
    active = queue.consumers.active
    return {
        "vhost": vhost.name,
        "name": queue.name,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "messages": ready + unacked,
        "consumers": consumers,
        "state": "paused" if queue.paused else "running",
        "policy": queue.policy,
        "operator_policy": queue.operator_policy,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_owner is not None,
        "arguments": json_table(queue.arguments),
        "single_active_consumer_tag": None if active is None else active.tag,
        "slots": sum(len(stream.manager.slots) for stream in queue.streams),
    }


async def count_bytes(queue: Queue) -> QueueBytes:
    """Return the bytes of a queue's messages, yielding to the loop from time to time."""
    counted = QueueBytes()
    messages = 0
    for length in counted.count(queue):
        messages += length
        if messages > MESSAGES_AT_ONCE:
            messages = 0
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


def exchange_row(vhost: Vhost, exchange: Exchange) -> Row:
    """Return the row of an exchange."""
    policy = vhost.policies.for_exchange(exchange)
    return {
        "vhost": vhost.name,
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "policy": None if policy is None else policy.name,
        "topic_index": exchange.index_name,
        "arguments": json_table(exchange.arguments),
    }


def binding_rows(vhost: Vhost) -> Iterator[Row]:
    """Yield the bindings, first that of every queue to the default exchange; taps and streams have none."""
    for name in [name for name, queue in vhost.queues.items() if not (queue.is_tap or queue.is_stream)]:
        yield _binding(vhost, "", name, "queue", name, {})
    for exchange in list(vhost.exchanges.values()):
        bindings: list[Binding] = list(exchange.bindings)
        for binding in bindings:
            kind = "queue" if isinstance(binding.destination, Queue) else "exchange"
            yield _binding(
                vhost, exchange.name, binding.destination.name, kind, binding.key, json_table(binding.arguments)
            )


def _binding(vhost: Vhost, source: str, destination: str, kind: str, key: str, arguments: Row) -> Row:
    return {
        "vhost": vhost.name,
        "source": source,
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": arguments,
    }


def consumer_rows(vhost: Vhost) -> Iterator[Row]:
    """Yield the consumers, queue by queue."""
    for queue in list(vhost.queues.values()):
        active = queue.consumers.active
        waiting = cast("list[Consumer]", list(queue.consumers))
        for consumer in waiting:
            session = cast("SessionOfConnection", consumer.connection.session)
            yield {
                "vhost": vhost.name,
                "queue": queue.name,
                "consumer_tag": consumer.tag,
                "connection": session.name,
                "channel": consumer.session.number,
                "ack_required": not consumer.no_ack,
                "prefetch_count": consumer.prefetch,
                "active": active is None or active is consumer,
                "exclusive": consumer.exclusive,
                "priority": consumer.priority,
                "messages_unacknowledged": consumer.unacked,
                "arguments": json_table(consumer.arguments),
            }


def connection_row(session: SessionOfConnection, *, blocked: bool) -> Row:
    """Return the row of a connection."""
    connection, peer = session.connection, session.peer
    connection_name = connection.client_properties.get("connection_name")
    return {
        "name": session.name,
        "user": None if session.user is None else session.user.name,
        "vhost": None if session.vhost is None else session.vhost.name,
        "state": "blocked"
        if blocked and connection.state is ConnectionState.RUNNING
        else connection.state.name.lower(),
        "channels": len(connection.channels),
        "peer_host": peer.address,
        "peer_port": peer.port,
        "host": peer.server_address,
        "port": peer.server_port,
        "ssl": peer.tls is not None,
        "frame_max": connection.frame_max,
        "channel_max": connection.channel_max,
        "timeout": connection.heartbeat_s,
        "recv_oct": connection.received,
        "send_oct": connection.sent,
        "connection_name": connection_name if isinstance(connection_name, str) else None,
        "client_properties": json_table(connection.client_properties),
    }


def channel_rows(session: SessionOfConnection) -> Iterator[Row]:
    """Yield the channels of a connection."""
    for number, channel in sorted(session.connection.channels.items()):
        inner = cast("SessionOfChannel", channel.session)
        basic = inner.basic
        yield {
            "connection": session.name,
            "number": number,
            "user": None if session.user is None else session.user.name,
            "vhost": None if session.vhost is None else session.vhost.name,
            "consumer_count": len(basic.consumers),
            "messages_unacknowledged": len(basic.unacked) + len(basic.unacked.aside),
            "prefetch_count": basic.prefetch_consumer,
            "global_prefetch_count": basic.prefetch_channel,
            "confirm": inner.publisher.confirms.confirming,
            "transactional": inner.settling is not basic,
        }


def policy_rows(vhost: Vhost, *, operator: bool) -> Iterator[Row]:
    """Yield the policies of a vhost."""
    for policy in vhost.policies.list(operator=operator):
        yield {
            "vhost": vhost.name,
            "name": policy.name,
            "pattern": policy.pattern,
            "apply_to": policy.apply_to,
            "definition": dict(policy.definition),
            "priority": policy.priority,
        }
