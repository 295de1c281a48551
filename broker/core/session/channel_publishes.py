"""The counters of what one channel publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.core.statistics.publish_tally import PublishTally

if TYPE_CHECKING:
    from broker.core.publishing.message_store import Targets
    from broker.core.publishing.publish_entry import PublishEntry
    from broker.core.statistics.vhost_tally import VhostTally
    from broker.routing.exchange_tally import ExchangeTally

__all__ = ["ChannelPublishes"]


class ChannelPublishes(PublishTally):
    """Counts for one channel, and at the same time for its vhost.

    Cost: one call for each run of publishes and for each confirm frame.
    """

    __slots__ = ("_vhost", "sizes")

    def __init__(self, vhost: VhostTally) -> None:
        super().__init__()
        self._vhost = vhost.publishes
        self.sizes = vhost.sizes

    def published_run(self, count: int, targets: list[Targets], stops: list[int], confirming: bool) -> None:
        """Count the publishes of a run, and where they went: those that no entry took went nowhere. HOT.

        Shapes: ``targets[n]`` is the PublishEntry of the messages up to place ``stops[n]``.
        Cost: one step for each entry, not for each message.
        """
        vhost = self._vhost
        self._receive(count, confirming)
        routed = 0
        reached = 0
        begun = 0
        for place in range(len(targets)):
            entry = cast("PublishEntry", targets[place])
            reach = entry.reach
            messages = stops[place] - begun
            begun = stops[place]
            entry.tally.count(messages, reach)
            if reach:
                reached += messages
                routed += messages * reach
        self.routed += routed
        vhost.routed += routed
        if reached < count:
            self.drop_unroutable += count - reached
            vhost.drop_unroutable += count - reached

    def published(self, body: bytes, confirming: bool) -> None:
        """Count one publish that is not part of a run; `reached` tells later where it went."""
        self._receive(1, confirming)
        self.sizes.count(len(body), 1)

    def reached(self, exchange: ExchangeTally, queues: int, *, dropped: bool = False) -> None:
        """Count to how many queues the message of one publish went, and whether it was dropped as unroutable."""
        exchange.count(1, queues)
        for tally in (self, self._vhost):
            tally.routed += queues
            tally.drop_unroutable += dropped

    def returned(self) -> None:
        """Count a mandatory message that was returned."""
        self.return_unroutable += 1
        self._vhost.return_unroutable += 1

    def confirmed(self, count: int) -> None:
        """Count publishes that were acknowledged to the publisher. HOT."""
        self.confirm += count
        self._vhost.confirm += count

    def _receive(self, count: int, confirming: bool) -> None:
        self.publish += count
        self._vhost.publish += count
        if confirming:
            self.publish_confirm += count
            self._vhost.publish_confirm += count
