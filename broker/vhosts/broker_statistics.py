"""The statistics of the broker: totals, which never decrease, and the counts of single objects."""

from __future__ import annotations

from typing import NamedTuple

from broker.core.auth.usage import Usage
from broker.core.auth.user_limits import CHANNELS, CONNECTIONS
from broker.core.queue.queue import Queue
from broker.core.session.channel import SessionOfChannel
from broker.core.statistics.publish_tally import PublishTally, SizeTally
from broker.core.statistics.vhost_tally import NO_MESSAGES, MessageCounts, VhostTally
from broker.delivery.engine import Engine
from broker.routing.exchange import Exchange, ExchangeTally
from broker.vhosts.vhosts import Vhosts


class ChurnCounts(NamedTuple):
    """Counts of objects opened, closed, declared and deleted since the start of the broker."""

    connections_opened: int
    connections_closed: int
    channels_opened: int
    channels_closed: int
    queues_declared: int
    queues_created: int
    queues_deleted: int


class BrokerStatistics:
    """Read the counters that channels, queues and vhosts keep; nothing is counted here.

    Cost: O(vhosts) for the whole broker, O(levels) for a queue, otherwise O(1).
    """

    def __init__(self, vhosts: Vhosts, usage: Usage) -> None:
        self._vhosts = vhosts
        self._usage = usage
        self._ended = VhostTally()  # the sum of the vhosts that were deleted or went offline
        self._tallies = [engine.vhost.tally for engine in vhosts.engines.values()]  # not the engines: they are large
        vhosts.on_open(self._opened)

    def totals(self) -> MessageCounts:
        """Return the message counts of the whole broker, which never decrease."""
        counts = NO_MESSAGES
        for tally in self._all():
            counts = counts.plus(tally.counts())
        return counts

    def by_protocol(self) -> dict[str, MessageCounts]:
        """Return the message counts of the whole broker by protocol, which never decrease."""
        total: dict[str, MessageCounts] = {}
        for tally in self._all():
            for protocol, counts in tally.by_protocol().items():
                total[protocol] = total.get(protocol, NO_MESSAGES).plus(counts)
        return total

    def vhost(self, name: str) -> MessageCounts:
        """Return the message counts of a vhost, or zeros if it is offline. Raises: KeyError if it does not exist."""
        if name in self._vhosts.offline:
            return NO_MESSAGES
        return self._vhosts[name].tally.counts()

    def queue(self, queue: Queue) -> MessageCounts:
        """Return the message counts of a queue; `publish` includes dead letters and messages moved into it."""
        counts = NO_MESSAGES
        for level in queue.levels:
            counts = counts.plus(MessageCounts.of(PublishTally(), level.tally)._replace(publish=level.published))
        return counts

    def channel(self, channel: SessionOfChannel) -> MessageCounts:
        return MessageCounts.of(channel.publisher.tally, channel.basic.tally)

    def exchange(self, exchange: Exchange) -> ExchangeTally:
        """Return the counts of an exchange: the messages that clients published, and their copies in queues."""
        return exchange.tally

    def sizes(self) -> SizeTally:
        """Return the histogram of the body sizes of published messages."""
        total = SizeTally()
        for tally in self._all():
            total.add(tally.sizes)
        return total

    def dead_letters(self) -> dict[str, int]:
        """Return the number of dead letters by their reason."""
        total = dict.fromkeys(("rejected", "expired", "maxlen", "delivery_limit"), 0)
        for tally in self._all():
            for reason, count in tally.dead_lettered.items():
                total[reason] = total.get(reason, 0) + count
        return total

    def churn(self) -> ChurnCounts:
        usage, tallies = self._usage, self._all()
        return ChurnCounts(
            usage.opened[CONNECTIONS],
            usage.closed[CONNECTIONS],
            usage.opened[CHANNELS],
            usage.closed[CHANNELS],
            sum([tally.queues_declared for tally in tallies]),
            sum([tally.queues_created for tally in tallies]),
            sum([tally.queues_deleted for tally in tallies]),
        )

    def _opened(self, engine: Engine) -> None:
        self._all()
        self._tallies.append(engine.vhost.tally)

    def _all(self) -> list[VhostTally]:
        """Return the tallies of the vhosts, and one with the sum of the vhosts that were deleted or went offline."""
        live = {engine.vhost.tally for engine in self._vhosts.engines.values()}
        for tally in [tally for tally in self._tallies if tally not in live]:
            self._ended.add(tally)
            self._tallies.remove(tally)
        return [*self._tallies, self._ended]
