"""Channels and consumers of this node's clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from broker.core.session.channel import SessionOfChannel
from broker.manage.answers import Response
from broker.manage.call import ApiRoute, Call, Needs, visible_sessions, visible_vhosts
from broker.manage.counts import MESSAGE_STATS, NO_PROCESS, message_numbers, with_rates
from broker.manage.listing import Listing, listed, row_answer
from broker.manage.managed_broker import ManagedBroker
from broker.manage.refusal import not_found
from broker.manage.samples import Sampled
from broker.operations.rows import (
    ChannelOf,
    Row,
    channel_name,
    channel_row,
    channels_of,
    consumer_row,
    consumers_of,
    user_name,
)


async def list_channels(call: Call) -> Response:
    """Answer with the channels of the visible connections, or of the connection in the path."""
    broker = call.broker
    return await listed(
        call.query,
        Listing(
            list(channels_of(visible_sessions(call))),
            names=lambda one: (channel_name(one), user_name(one[0])),
            whole=lambda one: whole(broker, one),
            order=lambda one: f"{one[0].name}\0{one[1]:05}",
        ),
    )


async def show_channel(call: Call) -> Response:
    """Answer with one channel and its consumers."""
    for channel in channels_of(visible_sessions(call)):
        if channel_name(channel) == call.words["channel"]:
            break
    else:
        raise not_found()
    broker, (session, _number, inner) = call.broker, channel
    assert session.vhost is not None
    row = whole(broker, channel)
    consumers = inner.basic.consumers.values()
    row["consumer_details"] = [consumer_row(broker.node_name, session.vhost, one.queue, one) for one in consumers]
    row |= {"deliveries": [], "publishes": []}
    sampled = Sampled(("channel", row["name"]), MESSAGE_STATS, len(MESSAGE_STATS), partial(_numbers_of, broker, inner))
    sampled.add_to(row["message_stats"], "msg_rates", MESSAGE_STATS, call.query, broker.samples)
    return row_answer(call, row)


def whole(broker: ManagedBroker, channel: ChannelOf) -> Row:
    """Return the row of a channel with its rates."""
    key = ("channel", channel_name(channel))
    numbers = message_numbers(broker.statistics.channel(channel[2]))
    rates = broker.samples.rates.of(key, numbers, len(numbers))
    row = channel_row(broker.node_name, channel, with_rates(MESSAGE_STATS, numbers, rates))
    row |= NO_PROCESS
    return row if rates is not None else row | broker.samples.rates.idle_since(key)


def _numbers_of(broker: ManagedBroker, inner: SessionOfChannel) -> Sequence[int] | None:
    return None if inner.closed else message_numbers(broker.statistics.channel(inner))


async def list_consumers(call: Call) -> Response:
    """Answer with the consumers of the visible vhosts."""
    found = (
        (vhost, queue, consumer)
        for vhost in visible_vhosts(call)
        for queue in list(vhost.queues.values())
        for consumer in consumers_of(queue)
    )
    node = call.broker.node_name
    return await listed(
        call.query,
        Listing(
            found,
            names=lambda one: (one[2].tag, one[1].name),
            whole=lambda one: consumer_row(node, *one),
            order=lambda one: f"{one[0].name}\0{one[1].name}\0{one[2].tag}",
        ),
    )


ROUTES: Final = (
    ApiRoute("GET", "/api/channels", Needs.MANAGEMENT, list_channels),
    ApiRoute("GET", "/api/vhosts/{vhost}/channels", Needs.MANAGEMENT, list_channels),
    ApiRoute("GET", "/api/connections/{connection}/channels", Needs.MANAGEMENT, list_channels),
    ApiRoute("GET", "/api/channels/{channel}", Needs.MANAGEMENT, show_channel),
    ApiRoute("GET", "/api/consumers", Needs.MANAGEMENT, list_consumers),
    ApiRoute("GET", "/api/consumers/{vhost}", Needs.MANAGEMENT, list_consumers),
)
