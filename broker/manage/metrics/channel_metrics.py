"""The metrics of a channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, cast

from broker.core.statistics.message_counts import MessageCounts
from broker.manage.metrics.metric import Family, counter, gauge

if TYPE_CHECKING:
    from broker.core.session.channel import SessionOfChannel
    from broker.core.session.connection import SessionOfConnection

__all__ = ["CHANNEL_FAMILIES", "ChannelReading", "channel_readings"]


class ChannelReading:
    """A channel at the moment of a scrape."""

    __slots__ = ("counts", "inner", "labels")

    def __init__(self, session: SessionOfConnection, inner: SessionOfChannel) -> None:
        vhost = "" if session.vhost is None else session.vhost.name
        self.inner = inner
        self.labels = (("channel", f"{session.name} ({inner.channel.number})"), ("vhost", vhost))
        self.counts = MessageCounts.of(inner.publisher.tally, inner.basic.tally)

    @property
    def unacked(self) -> int:
        """Messages that wait for an acknowledgement."""
        return len(self.inner.basic.unacked) + len(self.inner.basic.unacked.aside)

    @property
    def unconfirmed(self) -> int:
        """Messages that wait for a confirm."""
        return self.inner.publisher.confirms.published - self.inner.publisher.confirms.confirmed

    @property
    def uncommitted(self) -> int:
        """Messages that wait for a commit."""
        return 0 if self.inner.transactions is None else self.inner.transactions.kept_publishes


def channel_readings(sessions: Iterable[SessionOfConnection]) -> Iterator[ChannelReading]:
    """Yield the channels of some connections."""
    for session in sessions:
        for channel in list(session.connection.channels.values()):
            yield ChannelReading(session, cast("SessionOfChannel", channel.session))


CHANNEL_FAMILIES: Final[tuple[Family[ChannelReading], ...]] = (
    Family(
        "channel_metrics",
        (
            gauge("channel_consumers", "Consumers on a channel", lambda r: len(r.inner.basic.consumers)),
            gauge("channel_messages_unacked", "Messages delivered, not yet acknowledged", lambda r: r.unacked),
            gauge("channel_messages_unconfirmed", "Messages published, not yet confirmed", lambda r: r.unconfirmed),
            gauge(
                "channel_messages_uncommitted",
                "Messages published in a transaction that is not committed",
                lambda r: r.uncommitted,
            ),
            gauge(
                "channel_acks_uncommitted",
                "Acknowledgements in a transaction that is not committed",
                lambda r: len(r.inner.basic.unacked.aside),
            ),
            gauge(
                "consumer_prefetch",
                "Limit of unacknowledged messages of each consumer",
                lambda r: r.inner.basic.prefetch_consumer,
            ),
            gauge(
                "channel_prefetch",
                "Limit of unacknowledged messages of all consumers of a channel",
                lambda r: r.inner.basic.prefetch_channel,
            ),
        ),
    ),
    Family(
        "channel_exchange_metrics",
        (
            counter(
                "channel_messages_published_total",
                "Messages published on a channel",
                lambda r: r.counts.publish,
                lambda whole: whole.messages.publish,
            ),
            counter(
                "channel_messages_confirmed_total",
                "Messages published and confirmed",
                lambda r: r.counts.confirm,
                lambda whole: whole.messages.confirm,
            ),
            counter(
                "channel_messages_unroutable_returned_total",
                "Mandatory messages that were returned",
                lambda r: r.counts.return_unroutable,
                lambda whole: whole.messages.return_unroutable,
            ),
            counter(
                "channel_messages_unroutable_dropped_total",
                "Messages that no queue got",
                lambda r: r.counts.drop_unroutable,
                lambda whole: whole.messages.drop_unroutable,
            ),
        ),
    ),
    Family(
        "channel_queue_metrics",
        (
            counter(
                "channel_get_ack_total",
                "Messages fetched with basic.get, with acknowledgement",
                lambda r: r.counts.get,
                lambda whole: whole.messages.get,
            ),
            counter(
                "channel_get_total",
                "Messages fetched with basic.get, without acknowledgement",
                lambda r: r.counts.get_no_ack,
                lambda whole: whole.messages.get_no_ack,
            ),
            counter(
                "channel_messages_delivered_ack_total",
                "Messages delivered to consumers, with acknowledgement",
                lambda r: r.counts.deliver,
                lambda whole: whole.messages.deliver,
            ),
            counter(
                "channel_messages_delivered_total",
                "Messages delivered to consumers, without acknowledgement",
                lambda r: r.counts.deliver_no_ack,
                lambda whole: whole.messages.deliver_no_ack,
            ),
            counter(
                "channel_messages_redelivered_total",
                "Messages delivered or fetched that had been delivered before",
                lambda r: r.counts.redeliver,
                lambda whole: whole.messages.redeliver,
            ),
            counter(
                "channel_messages_acked_total",
                "Messages acknowledged",
                lambda r: r.counts.ack,
                lambda whole: whole.messages.ack,
            ),
            counter(
                "channel_get_empty_total",
                "Calls of basic.get that found no message",
                lambda r: r.counts.get_empty,
                lambda whole: whole.messages.get_empty,
            ),
        ),
    ),
)
