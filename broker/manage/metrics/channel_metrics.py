"""Metrics of channels and connections, and of logins by protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from broker.core.auth.login_counts import LoginCount
from broker.core.auth.logins import Logins
from broker.core.session.connection import SessionOfConnection
from broker.core.statistics.vhost_tally import MessageCounts
from broker.manage.metrics.metric import (
    DELIVERIES,
    PUBLISHES,
    Family,
    Metric,
    Reading,
    counter,
    gauge,
    message_counters,
)
from broker.operations.rows import ChannelOf, channel_row, channels_of, user_name, vhost_name


class ChannelReading:
    """A channel at the time of a scrape."""

    __slots__ = ("counts", "inner", "labels", "protocol", "row")

    def __init__(self, channel: ChannelOf) -> None:
        inner = self.inner = channel[2]
        self.protocol = channel[0].connection.protocol
        self.row = channel_row("", channel, {})
        self.labels = (("channel", self.row["name"]), ("vhost", self.row["vhost"]))
        self.counts = MessageCounts.of(inner.publisher.tally, inner.basic.tally)


def channel_readings(sessions: Iterable[SessionOfConnection]) -> Iterator[ChannelReading]:
    """Yield a reading of each channel of the connections."""
    for channel in channels_of(sessions):
        yield ChannelReading(channel)


def _of_row(name: str, about: str, column: str) -> Metric[ChannelReading]:
    """Return a gauge that is a column of the channel's row."""
    return gauge(name, about, lambda reading: reading.row[column])


CHANNEL_FAMILIES: Final[tuple[Family[ChannelReading], ...]] = (
    Family(
        "channel_metrics",
        _of_row("channel_consumers", "Consumers on a channel", "consumer_count"),
        _of_row("channel_messages_unacked", "Messages delivered, not yet acknowledged", "messages_unacknowledged"),
        _of_row("channel_messages_unconfirmed", "Messages published, not yet confirmed", "messages_unconfirmed"),
        _of_row(
            "channel_messages_uncommitted",
            "Messages published in a transaction that is not committed",
            "messages_uncommitted",
        ),
        gauge(
            "channel_acks_uncommitted",
            "Acknowledgements in a transaction that is not committed",
            lambda r: r.inner.basic.unacked.aside_count,
        ),
        _of_row("consumer_prefetch", "Limit of unacknowledged messages of each consumer", "prefetch_count"),
        _of_row(
            "channel_prefetch",
            "Limit of unacknowledged messages of all consumers of a channel",
            "global_prefetch_count",
        ),
    ),
    Family("channel_exchange_metrics", *message_counters("channel", PUBLISHES)),
    Family("channel_queue_metrics", *message_counters("channel", DELIVERIES)),
)


def connection_readings(sessions: Iterable[SessionOfConnection]) -> Iterator[Reading[SessionOfConnection]]:
    """Yield a reading of each connection."""
    for session in sessions:
        names = (("connection", session.name), ("vhost", vhost_name(session)), ("user", user_name(session)))
        yield Reading(session, *names)


CONNECTION_FAMILIES: Final[tuple[Family[Reading[SessionOfConnection]], ...]] = (
    Family(
        "connection_coarse_metrics",
        counter(
            "connection_incoming_bytes_total",
            "Bytes received",
            lambda r: r.of.connection.received,
            lambda whole: whole.received_bytes,
        ),
        counter(
            "connection_outgoing_bytes_total",
            "Bytes sent",
            lambda r: r.of.connection.sent,
            lambda whole: whole.sent_bytes,
        ),
    ),
    Family(
        "connection_metrics",
        gauge("connection_channels", "Channels on a connection", lambda r: len(r.of.connection.channels)),
    ),
)


def login_readings(logins: Logins) -> Iterator[Reading[LoginCount]]:
    """Yield the counts of logins by protocol."""
    for protocol, count in sorted(logins.counts.by_protocol.items()):
        yield Reading(count, ("protocol", protocol))


LOGIN_FAMILIES: Final[tuple[Family[Reading[LoginCount]], ...]] = (
    Family(
        "auth_attempt_metrics",
        counter("auth_attempts_total", "Logins attempted", lambda r: r.of.succeeded + r.of.failed),
        counter("auth_attempts_succeeded_total", "Logins that succeeded", lambda r: r.of.succeeded),
        counter("auth_attempts_failed_total", "Logins that failed", lambda r: r.of.failed),
    ),
)
