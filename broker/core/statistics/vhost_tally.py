"""All counters of one vhost."""

from __future__ import annotations

from collections import Counter

from broker.core.statistics.delivery_tally import DeliveryTally
from broker.core.statistics.lost_publishes import LostPublishes
from broker.core.statistics.message_counts import MessageCounts
from broker.core.statistics.publish_tally import PublishTally, SizeTally

__all__ = ["VhostTally"]


class VhostTally:
    """Counts what happens in one vhost.

    Shapes: ``dead_lettered`` counts dead letters by their reason: rejected, expired, maxlen or delivery_limit; ``lost``
        has the publishers that lost messages.
    Units: ``queues_declared`` counts declares that were answered with a queue, ``queues_created`` the queues that they
        made.
    Invariant: the numbers only grow; what ends in the vhost (a channel, a queue) stays counted.
    """

    __slots__ = (
        "dead_lettered",
        "deliveries",
        "lost",
        "publishes",
        "queues_created",
        "queues_declared",
        "queues_deleted",
        "sizes",
    )

    def __init__(self) -> None:
        self.publishes = PublishTally()
        self.deliveries = DeliveryTally()
        self.sizes = SizeTally()
        self.dead_lettered: Counter[str] = Counter()
        self.lost = LostPublishes()
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0

    def declared(self) -> None:
        """Count a declare of a client, of a queue that may have existed before."""
        self.queues_declared += 1

    def created(self) -> None:
        """Count a queue that a client made."""
        self.queues_created += 1

    def deleted(self) -> None:
        """Count a deleted queue."""
        self.queues_deleted += 1

    def count_dead_letter(self, reason: str, count: int = 1) -> None:
        """Count dead letters."""
        self.dead_lettered[reason] += count

    def add(self, other: VhostTally) -> None:
        """Add the counts of another vhost, which has ended."""
        self.publishes.add(other.publishes)
        self.deliveries.add(other.deliveries)
        self.sizes.add(other.sizes)
        self.dead_lettered.update(other.dead_lettered)
        self.queues_declared += other.queues_declared
        self.queues_created += other.queues_created
        self.queues_deleted += other.queues_deleted

    def counts(self) -> MessageCounts:
        """Return the counts of messages now."""
        return MessageCounts.of(self.publishes, self.deliveries)
