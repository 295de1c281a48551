"""The metrics of a channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.core.statistics.message_counts import MessageCounts
from broker.manage.metrics.metric import DELIVERIES, PUBLISHES, Family, gauge, message_counters
from broker.operations.rows import ChannelOf, channel_row, channels_of

if TYPE_CHECKING:
    from broker.core.session.connection import SessionOfConnection

__all__ = ["CHANNEL_FAMILIES", "ChannelReading", "channel_readings"]


class ChannelReading:
    """A channel at the moment of a scrape."""

    __slots__ = ("counts", "inner", "labels", "row")

    def __init__(self, channel: ChannelOf) -> None:
        inner = self.inner = channel[2]
        self.row = channel_row("", channel, {})
        self.labels = (("channel", self.row["name"]), ("vhost", self.row["vhost"]))
        self.counts = MessageCounts.of(inner.publisher.tally, inner.basic.tally)


def channel_readings(sessions: Iterable[SessionOfConnection]) -> Iterator[ChannelReading]:
    """Yield the channels of some connections."""
    for channel in channels_of(sessions):
        yield ChannelReading(channel)


CHANNEL_FAMILIES: Final[tuple[Family[ChannelReading], ...]] = (
    Family(
        "channel_metrics",
        (
            gauge("channel_consumers", "Consumers on a channel", lambda r: r.row["consumer_count"]),
            gauge(
                "channel_messages_unacked",
                "Messages delivered, not yet acknowledged",
                lambda r: r.row["messages_unacknowledged"],
            ),
            gauge(
                "channel_messages_unconfirmed",
                "Messages published, not yet confirmed",
                lambda r: r.row["messages_unconfirmed"],
            ),
            gauge(
                "channel_messages_uncommitted",
                "Messages published in a transaction that is not committed",
                lambda r: r.row["messages_uncommitted"],
            ),
            gauge(
                "channel_acks_uncommitted",
                "Acknowledgements in a transaction that is not committed",
                lambda r: r.inner.basic.unacked.aside_count,
            ),
            gauge(
                "consumer_prefetch",
                "Limit of unacknowledged messages of each consumer",
                lambda r: r.row["prefetch_count"],
            ),
            gauge(
                "channel_prefetch",
                "Limit of unacknowledged messages of all consumers of a channel",
                lambda r: r.row["global_prefetch_count"],
            ),
        ),
    ),
    Family("channel_exchange_metrics", message_counters("channel", PUBLISHES)),
    Family("channel_queue_metrics", message_counters("channel", DELIVERIES)),
)
