"""The publisher confirms of one channel."""

from __future__ import annotations

from struct import Struct
from typing import Final, cast

from broker.amqp.channel import Channel
from broker.amqp.connection import Connection
from broker.core.publishing.message_store import Targets
from broker.core.publishing.publish_entry import PublishEntry
from broker.core.statistics.publish_tally import ChannelPublishes
from broker.core.vhost import Vhost

ACK: Final = 80
NACK: Final = 120
DROPPED: Final = 81  # an ack of a duplicate, which was dropped because its number was already used
QUEUE_FULL: Final = "a queue is full"
_CONFIRM: Final = Struct(">BHIHHQBB")  # basic.ack, basic.nack: type, channel, size, class, method, tag, bits, frame end
# RabbitMQ sets this bit in every nack, where it has no meaning for a publisher. In an ack it marks a duplicate; it is
# sent only to clients with the capability.
_MARKED: Final = 2
_DROPPED_CAPABILITY: Final = "slotmq.dropped_publishes"


class ChannelConfirms:
    """Number the publishes of one channel, and confirm each once it no longer has to wait for the disk or its queues.

    Units: publishes are numbered from 1 after confirm.select. `published` is the last number, `confirmed` that of the
        last confirmed one, and `logged` that of the last one whose confirm has to wait for the disk.
    Invariant: confirmed <= published; every publish up to `confirmed` was answered. `waiting` is set while this object
        is on the committer's list. No confirm is sent while `silent` is set: until the answer to confirm.select is
        sent, and once the channel is `closed`.
    """

    __slots__ = ("_committer", "_connection", "_entering", "_marks_dropped", "_number", "_others", "_tally", "_wide",
                 "closed", "confirmed", "confirming", "logged", "published", "silent", "waiting")  # fmt: skip

    def __init__(self, channel: Channel, connection: Connection, vhost: Vhost, tally: ChannelPublishes) -> None:
        self._number = channel.number
        self._connection = connection
        self._committer = vhost.committer
        self._wide = vhost.wide
        self._tally = tally
        self._marks_dropped = connection.has_capability(_DROPPED_CAPABILITY)
        self._entering = 0  # the first wide publish that has not entered all of its queues, or 0 if there is none
        self._others: dict[int, int] | None = None  # NACK or DROPPED, by number; most channels need no dict
        self.closed = False
        self.silent = False
        self.confirming = False
        self.waiting = False
        self.published = 0
        self.confirmed = 0
        self.logged = 0

    def start(self) -> None:
        """Start to confirm publishes; no confirm is sent before earlier answers of the channel."""
        if not self.confirming:
            self.confirming = self.silent = True
            self._connection.when_sent(self._number, self._end_silence)

    def close(self) -> None:
        self.closed = self.silent = True

    def _end_silence(self) -> None:
        self.silent = self.closed
        if self.published > self.confirmed:
            self._request()

    # -- publishes ----------------------------------------------------------------------------------------------------

    def published_run(
        self,
        headers: list[bytes],
        bodies: list[bytes],
        start: int,
        stop: int,
        targets: list[Targets],
        stops: list[int],
        logged: int,
    ) -> None:
        """Count the publishes of a run from index `start` up to `stop`, and request their confirms. HOT.

        Shapes: headers and bodies as in a PublishRun. `targets[n]` is the PublishEntry of the routed messages with
            indexes from `stops[n - 1]` (0 for the first entry) up to `stops[n]`. The confirms of the first `logged`
            publishes have to wait for the disk.
        Cost: one step for each entry, and one `len` per message unless the first and the last share a header.
        """
        if start == stop:
            return
        routed = 0
        reached = 0
        begun = 0
        for place in range(len(targets)):
            entry = cast("PublishEntry", targets[place])
            reach = entry.reach
            messages = stops[place] - begun
            begun = stops[place]
            tally = entry.tally
            tally.publish_in += messages  # hot: set directly
            tally.publish_out += messages * reach  # hot: set directly
            if reach:
                reached += messages
                routed += messages * reach
        self._tally.published_run(headers, bodies, start, stop, reached, routed, self.confirming)
        if self.confirming:
            if logged:
                self.logged = self.published + logged
            self.published += stop - start
            if not self.waiting:
                self.waiting = True
                self._committer.wait(self)

    def published_one(self, body: bytes) -> None:
        """Count one publish that is not part of a run, and request its confirm."""
        self._tally.published(body, self.confirming)
        if self.confirming:
            self.published += 1
            self._request()

    def wait_for_disk(self) -> None:
        """Confirm the last publish after the next sync."""
        self.logged = self.published

    def wait_for_queues(self) -> None:
        """Confirm the last publish, which is a wide one, once it has entered all of its queues."""
        if self.confirming:
            self._entering = self._entering or self.published
            self._wide.when_entered(self._entered)

    def drop_last(self) -> None:
        """Mark the confirm of the last publish as that of a duplicate, if the client has the capability."""
        if self.confirming and self._marks_dropped:
            self._answer_otherwise(self.published, DROPPED)

    def note_unrouted(self) -> None:
        """Do nothing, because AMQP confirms a publish that reached no queue like any other."""

    def refuse(self, number: int, reason: str = QUEUE_FULL) -> None:
        """Answer an unconfirmed publish with a nack, which does not state the reason."""
        self._answer_otherwise(number, NACK)

    def _answer_otherwise(self, number: int, kind: int) -> None:
        if self._others is None:
            self._others = {}
        self._others[number] = kind

    def _entered(self) -> None:
        self._entering = 0
        self._request()

    def _request(self) -> None:
        """Request a confirm from the committer."""
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    # -- confirms -----------------------------------------------------------------------------------------------------

    def confirm(self, upto: int) -> None:
        """Answer the publishes up to and including number `upto`, with as few frames as possible. A wide publish that
        has yet to enter queues, and all publishes after it, are answered later.
        """
        if self.silent:
            return
        if self._entering and upto >= self._entering:
            upto = self._entering - 1
        if self._others:
            self._settle_others(self._others, upto)
            if not self._others:
                self._others = None  # an emptied dict does not shrink
        self._settle(ACK, upto)

    def _settle_others(self, kinds: dict[int, int], upto: int) -> None:
        """Send the nacks and marked acks up to a number, and the acks before each of them."""
        last, kind = 0, ACK
        for number in sorted([number for number in kinds if number <= upto]):
            if number != last + 1 or kinds[number] != kind:  # one frame covers consecutive numbers of a kind
                self._settle(kind, last)
                self._settle(ACK, number - 1)
            last, kind = number, kinds.pop(number)
        self._settle(kind, last)

    def _settle(self, kind: int, upto: int) -> None:
        """Send one frame for all unconfirmed publishes up to a number. Shapes: `kind` is ACK, NACK or DROPPED.

        Source: RabbitMQ's publisher confirms; basic.ack (60, 80), basic.nack (60, 120).
        """
        count = upto - self.confirmed
        if count <= 0:
            return
        self.confirmed = upto
        if kind != NACK:
            self._tally.confirmed(count)
        bits = (1 if count > 1 else 0) | (0 if kind == ACK else _MARKED)
        method = NACK if kind == NACK else ACK
        self._connection.write(_CONFIRM.pack(1, self._number, 13, 60, method, upto, bits, 0xCE))
