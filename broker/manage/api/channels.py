"""GET /api/channels: the channels of this node's clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

from starlette.responses import Response

from broker.manage.answers import json_answer
from broker.manage.api.consumers import consumer_row
from broker.manage.api.visible import visible_sessions
from broker.manage.api_route import ApiRoute
from broker.manage.columns import Columns, Row
from broker.manage.counts import message_numbers
from broker.manage.listing import Listing, listed
from broker.manage.message_stats import MESSAGE_STATS, NO_PROCESS, with_rates
from broker.manage.needs import Needs
from broker.manage.refusal import not_found
from broker.manage.sampled import Sampled

if TYPE_CHECKING:
    from broker.core.session.channel import SessionOfChannel
    from broker.core.session.connection import SessionOfConnection
    from broker.manage.call import Call
    from broker.manage.managed_broker import ManagedBroker

__all__ = ["channel_names", "channel_order", "channel_routes", "channel_row", "channels_of"]

Listed = tuple["SessionOfConnection", int, "SessionOfChannel"]


def channel_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/channels", Needs.MANAGEMENT, list_channels),
        ApiRoute("GET", "/api/vhosts/{vhost}/channels", Needs.MANAGEMENT, list_channels),
        ApiRoute("GET", "/api/channels/{channel}", Needs.MANAGEMENT, show_channel),
    ]


def channels_of(sessions: Iterable[SessionOfConnection]) -> Iterator[Listed]:
    """Yield the channels of connections."""
    for session in sessions:
        for number, channel in session.connection.channels.items():
            yield session, number, cast("SessionOfChannel", channel.session)


def channel_names(channel: Listed) -> tuple[str, ...]:
    """Return the names by which a channel is found: its own and the user."""
    session, number, _inner = channel
    return f"{session.name} ({number})", "" if session.user is None else session.user.name


def channel_order(channel: Listed) -> str:
    """Return what channels are usually sorted by."""
    return f"{channel[0].name}\0{channel[1]:05}"


async def list_channels(call: Call) -> Response:
    """Answer with a list of channels."""
    broker = call.broker
    return await listed(
        call.query,
        Listing(
            list(channels_of(visible_sessions(call))),
            names=channel_names,
            whole=lambda one: channel_row(broker, one),
            order=channel_order,
        ),
    )


async def show_channel(call: Call) -> Response:
    """Answer with one channel and its consumers."""
    for channel in channels_of(visible_sessions(call)):
        if channel_names(channel)[0] == call.words["channel"]:
            break
    else:
        raise not_found()
    broker, (session, _number, inner) = call.broker, channel
    assert session.vhost is not None
    row = channel_row(broker, channel)
    consumers = inner.basic.consumers.values()
    row["consumer_details"] = [consumer_row(broker.node_name, session.vhost, one.queue, one) for one in consumers]
    row |= {"deliveries": [], "publishes": []}
    sampled = Sampled(("channel", row["name"]), MESSAGE_STATS, len(MESSAGE_STATS), partial(_numbers_of, broker, inner))
    sampled.add_to(row["message_stats"], "msg_rates", MESSAGE_STATS, call.query, broker.samples)
    columns = call.query.get("columns", "")
    return json_answer(Columns(columns).of(row) if columns else row)


def channel_row(broker: ManagedBroker, channel: Listed) -> Row:
    """Return the row of a channel."""
    session, number, inner = channel
    basic, confirms, transactions = inner.basic, inner.publisher.confirms, inner.transactions
    name = channel_names(channel)[0]
    user = "" if session.user is None else session.user.name
    numbers = message_numbers(broker.statistics.channel(inner))
    rates = broker.samples.rates.of(("channel", name), numbers, len(numbers))
    changed_s = broker.samples.rates.changed_s(("channel", name))
    row: Row = {
        "acks_uncommitted": 0 if transactions is None else transactions.kept_acknowledgements,
        "confirm": confirms.confirming,
        "connection_details": {
            "name": session.name,
            "peer_host": session.peer.address,
            "peer_port": session.peer.port,
        },
        "consumer_count": len(basic.consumers),
        "global_prefetch_count": basic.prefetch_channel,
        "message_stats": with_rates(MESSAGE_STATS, numbers, rates),
        "messages_unacknowledged": len(basic.unacked) + len(basic.unacked.aside),
        "messages_uncommitted": 0 if transactions is None else transactions.kept_publishes,
        "messages_unconfirmed": confirms.published - confirms.confirmed,
        "name": name,
        "node": broker.node_name,
        "number": number,
        "pending_raft_commands": 0,
        "prefetch_count": basic.prefetch_consumer,
        "state": "closing" if inner.closed else "running",
        "transactional": transactions is not None,
        "user": user,
        "user_who_performed_action": user,
        "vhost": "" if session.vhost is None else session.vhost.name,
        **NO_PROCESS,
    }
    if rates is None and changed_s is not None:
        row["idle_since"] = datetime.fromtimestamp(changed_s, UTC).isoformat(timespec="milliseconds")
    return row


def _numbers_of(broker: ManagedBroker, inner: SessionOfChannel) -> Sequence[int] | None:
    return None if inner.closed else message_numbers(broker.statistics.channel(inner))
