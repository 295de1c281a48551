"""All counters of one vhost."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from broker.core.statistics.delivery_tally import DeliveryTally
from broker.core.statistics.publish_tally import PublishTally, SizeTally

AMQP: Final = "AMQP 0-9-1"
PUBLISHERS_MAX: Final = 1000


class MessageCounts(NamedTuple):
    """The counts of a PublishTally and a DeliveryTally at one moment."""

    publish: int = 0
    publish_confirm: int = 0
    confirm: int = 0
    routed: int = 0
    return_unroutable: int = 0
    drop_unroutable: int = 0
    deliver: int = 0
    deliver_no_ack: int = 0
    get: int = 0
    get_no_ack: int = 0
    get_empty: int = 0
    redeliver: int = 0
    ack: int = 0

    @property
    def deliver_get(self) -> int:
        """The number of messages that were delivered or fetched, with or without acks."""
        return self.deliver + self.deliver_no_ack + self.get + self.get_no_ack

    @classmethod
    def of(cls, published: PublishTally, delivered: DeliveryTally) -> MessageCounts:
        """Return the counts of a channel or a vhost."""
        return cls(
            published.publish,
            published.publish_confirm,
            published.confirm,
            published.routed,
            published.return_unroutable,
            published.drop_unroutable,
            delivered.deliver,
            delivered.deliver_no_ack,
            delivered.get,
            delivered.get_no_ack,
            delivered.get_empty,
            delivered.redeliver,
            delivered.ack,
        )

    def plus(self, other: MessageCounts) -> MessageCounts:
        return MessageCounts(*[one + another for one, another in zip(self, other, strict=True)])


NO_MESSAGES = MessageCounts()


class LostPublishes:
    """Count lost messages by connection, open or closed, for the PUBLISHERS_MAX latest to lose one."""

    def __init__(self) -> None:
        self._by_publisher: dict[tuple[str, str], tuple[int, str | None]] = {}

    def count(self, connection: str, user: str, given_name: str | None) -> bool:
        """Count a lost message of a user's connection, and return whether it is the connection's first."""
        publishers, key = self._by_publisher, (connection, user)
        known = publishers.pop(key, None)
        publishers[key] = (1 if known is None else known[0] + 1, given_name)
        if len(publishers) > PUBLISHERS_MAX:
            del publishers[next(iter(publishers))]
        return known is None

    def of(self, connection: str, user: str) -> int:
        """Return the number of messages that a connection has lost."""
        return self._by_publisher.get((connection, user), (0, None))[0]

    def rows(self) -> list[dict[str, Any]]:
        """Return the publishers as JSON, the latest to lose a message first."""
        return [
            {"connection": connection, "connection_name": given_name, "user": user, "messages": count}
            for (connection, user), (count, given_name) in reversed(self._by_publisher.items())
        ]


class VhostTally:
    """Count the events of one vhost.

    Shapes: ``protocols`` maps each protocol to its tallies; those of AMQP are also ``publishes`` and ``deliveries``.
        ``dead_lettered`` counts dead letters by their reason, ``lost`` lost messages by publisher.
    Units: ``queues_declared`` counts successful declares, ``queues_created`` those that created a queue.
    Invariant: no count decreases when a channel or a queue ends.
    """

    def __init__(self) -> None:
        self.publishes = PublishTally()
        self.deliveries = DeliveryTally()
        self.protocols: dict[str, tuple[PublishTally, DeliveryTally]] = {AMQP: (self.publishes, self.deliveries)}
        self.sizes = SizeTally()
        self.dead_lettered: Counter[str] = Counter()
        self.lost = LostPublishes()
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0

    def publishes_of(self, protocol: str) -> PublishTally:
        return self._of(protocol)[0]

    def deliveries_of(self, protocol: str) -> DeliveryTally:
        return self._of(protocol)[1]

    def _of(self, protocol: str) -> tuple[PublishTally, DeliveryTally]:
        return self.protocols.setdefault(protocol, (PublishTally(), DeliveryTally()))

    @property
    def publishes_lost(self) -> int:
        """The number of messages that were lost because their publishers used no confirms."""
        return sum([published.lost for published, _ in self.protocols.values()])

    def declared(self) -> None:
        """Count a declare of a queue, which may already have existed."""
        self.queues_declared += 1

    def created(self) -> None:
        """Count a queue that a declare created."""
        self.queues_created += 1

    def deleted(self, count: int = 1) -> None:
        self.queues_deleted += count

    def count_dead_letter(self, reason: str, count: int = 1) -> None:
        self.dead_lettered[reason] += count

    def add(self, other: VhostTally) -> None:
        """Add the counts of a deleted vhost."""
        for protocol, (published, delivered) in other.protocols.items():
            self.publishes_of(protocol).add(published)
            self.deliveries_of(protocol).add(delivered)
        self.sizes.add(other.sizes)
        self.dead_lettered.update(other.dead_lettered)
        self.queues_declared += other.queues_declared
        self.queues_created += other.queues_created
        self.queues_deleted += other.queues_deleted

    def counts(self) -> MessageCounts:
        counts = NO_MESSAGES
        for one in self.by_protocol().values():
            counts = counts.plus(one)
        return counts

    def by_protocol(self) -> dict[str, MessageCounts]:
        """Return the current counts of messages by protocol."""
        return {name: MessageCounts.of(*one) for name, one in self.protocols.items()}
