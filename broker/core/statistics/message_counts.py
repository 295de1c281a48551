"""The message counters of a channel, a queue, a vhost or the broker at one moment."""

from __future__ import annotations

from typing import NamedTuple

from broker.core.statistics.delivery_tally import DeliveryTally
from broker.core.statistics.publish_tally import PublishTally

__all__ = ["NO_MESSAGES", "MessageCounts"]


class MessageCounts(NamedTuple):
    """Messages since the start of the broker, under RabbitMQ's names. See PublishTally and DeliveryTally."""

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
        """Messages that were delivered or fetched, with or without acknowledgement."""
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
        """Return the sums."""
        return MessageCounts(*[one + another for one, another in zip(self, other, strict=True)])


NO_MESSAGES = MessageCounts()
