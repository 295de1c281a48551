"""Count publishes and confirms, per channel and per vhost, and the sizes of messages."""

from __future__ import annotations

from typing import Final

from broker.routing.exchange import ExchangeTally

# The upper bounds of the buckets of RabbitMQ's metric rabbitmq_message_size_bytes.
SIZE_BOUNDS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
SMALL_BYTES: Final = 100
"""The first bound, which is compared separately because most messages are smaller."""


class SizeTally:
    """A histogram of the body sizes of published messages.

    Shapes: ``counts`` contains the count of each bucket: one for each of SIZE_BOUNDS, and one for larger messages.
    Units: ``total_bytes`` is the sum of the sizes.
    """

    def __init__(self) -> None:
        self._small = 0
        self._larger = [0] * len(SIZE_BOUNDS)
        self.total_bytes = 0

    @property
    def counts(self) -> list[int]:
        return [self._small, *self._larger]

    def count(self, size_bytes: int, messages: int) -> None:
        """Count messages of one size. HOT."""
        self.total_bytes += size_bytes * messages
        if size_bytes <= SMALL_BYTES:
            self._small += messages
        else:
            self._count_at(place_of(size_bytes), messages)

    def _count_at(self, place: int, messages: int) -> None:
        if place:
            self._larger[place - 1] += messages
        else:
            self._small += messages

    def add(self, other: SizeTally) -> None:
        self._small += other._small
        self._larger = [one + another for one, another in zip(self._larger, other._larger, strict=True)]
        self.total_bytes += other.total_bytes

    def count_each(self, bodies: list[bytes]) -> None:
        """Count messages of different sizes. HOT.

        Cost: one length per message, and a call for each if they belong to different buckets.
        """
        sizes = [len(body) for body in bodies]
        bucket = place_of(min(sizes))
        if bucket == place_of(max(sizes)):
            self._count_at(bucket, len(sizes))
            self.total_bytes += sum(sizes)
        else:
            for size_bytes in sizes:
                self.count(size_bytes, 1)


def place_of(size_bytes: int) -> int:
    """Return the index of the bucket that counts a size.

    Most messages are small, and in compiled code the comparisons are faster than a call of bisect.
    """
    place = 0
    for bound in SIZE_BOUNDS:
        if size_bytes <= bound:
            return place
        place += 1
    return place


class PublishTally:
    """Count publishes under RabbitMQ's names.

    Units: messages. `publish_confirm` counts publishes on channels in confirm mode; `confirm` counts those acknowledged
        to the publisher. `routed` counts each message once for each of its queues. `lost` counts messages that were
        lost because their publisher used no confirms.
    Invariant: no count decreases.
    """

    __slots__ = ("confirm", "drop_unroutable", "lost", "publish", "publish_confirm", "return_unroutable", "routed")

    def __init__(self) -> None:
        self.publish = 0
        self.publish_confirm = 0
        self.confirm = 0
        self.routed = 0
        self.return_unroutable = 0
        self.drop_unroutable = 0
        self.lost = 0

    def count_publish(self, confirming: bool) -> None:
        self.publish += 1
        self.publish_confirm += confirming

    def count_reached(self, queues: int, dropped: bool) -> None:
        """Count the queues that one message reached, and whether it was dropped."""
        self.routed += queues
        self.drop_unroutable += dropped

    def count_returned(self) -> None:
        self.return_unroutable += 1

    def count_lost(self) -> None:
        self.lost += 1

    def add(self, other: PublishTally) -> None:
        self.publish += other.publish
        self.publish_confirm += other.publish_confirm
        self.confirm += other.confirm
        self.routed += other.routed
        self.return_unroutable += other.return_unroutable
        self.drop_unroutable += other.drop_unroutable
        self.lost += other.lost


class ChannelPublishes(PublishTally):
    """Count publishes and confirms for one channel and for its vhost.

    Cost: one call for each run of publishes and for each confirm frame.
    """

    __slots__ = ("_vhost", "sizes")

    def __init__(self, vhost: PublishTally, sizes: SizeTally) -> None:
        super().__init__()
        self._vhost = vhost
        self.sizes = sizes

    def published_run(
        self,
        headers: list[bytes],
        bodies: list[bytes],
        start: int,
        stop: int,
        reached: int,
        routed: int,
        confirming: bool,
    ) -> None:
        """Count the publishes of a run from index `start` up to `stop`. HOT.

        Shapes: headers and bodies as in a PublishRun. `reached` is the number of publishes with a queue; `routed`
            counts each publish once for each of its queues.
        Cost: one step if the first and the last message share a header, otherwise one length per message.
        """
        count = stop - start
        vhost = self._vhost
        self.publish += count
        vhost.publish += count  # hot: set directly
        if confirming:
            self.publish_confirm += count
            vhost.publish_confirm += count  # hot: set directly
        self.routed += routed
        vhost.routed += routed  # hot: set directly
        if reached < count:
            self.drop_unroutable += count - reached
            vhost.drop_unroutable += count - reached  # hot: set directly
        if headers[start] is headers[stop - 1]:
            self.sizes.count(len(bodies[start]), count)
        else:
            self.sizes.count_each(bodies[start:stop])

    def published(self, body: bytes, confirming: bool) -> None:
        """Count one publish that is not part of a run; `reached` later counts its queues."""
        for tally in (self, self._vhost):
            tally.count_publish(confirming)
        self.sizes.count(len(body), 1)

    def reached(self, exchange: ExchangeTally, queues: int, *, dropped: bool = False) -> None:
        """Count the queues that the message of one publish reached, and whether it was dropped as unroutable."""
        exchange.count(1, queues)
        for tally in (self, self._vhost):
            tally.count_reached(queues, dropped)

    def returned(self) -> None:
        for tally in (self, self._vhost):
            tally.count_returned()

    def lose(self) -> None:
        """Count a message that was lost because its publisher uses no confirms."""
        for tally in (self, self._vhost):
            tally.count_lost()

    def confirmed(self, count: int) -> None:
        """Count publishes that were acknowledged to the publisher. HOT."""
        self.confirm += count
        self._vhost.confirm += count  # hot: set directly
