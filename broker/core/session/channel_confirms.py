"""The confirms of one channel: the publishes that wait for one, and the acks and nacks that answer them."""

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
DROPPED: Final = 81  # an ack of a message that was dropped because its number was already used
_CONFIRM: Final = Struct(">BHIHHQBB")  # basic.ack, basic.nack: type, channel, size, class, method, tag, bits, frame end
# The bit that RabbitMQ sets in every nack, where it has no meaning for a publisher. In an ack it means that the broker
# already had the message; clients read only the first bit, and only one that announced the capability gets it.
_MARKED: Final = 2
_TELLS_DROPPED: Final = "slotmq.dropped_publishes"


class ChannelConfirms:
    """Number the publishes of one channel, and confirm those that are on disk.

    Units: ``published``, ``confirmed`` and ``logged`` are publish sequence numbers, which start at 1 with
        confirm.select; ``logged`` is the last one whose confirm has to wait for the disk.
    Invariant: confirmed <= published; every number up to ``confirmed`` was confirmed to the client, with an ack or a
        nack. ``waiting`` is set while it is on the committer's list. It is ``silent`` before the answer to
        confirm.select was sent, and when the channel is ``closed``.
    """

    __slots__ = ("_committer", "_connection", "_entering", "_number", "_others", "_tally", "_tells_dropped", "_wide",
                 "closed", "confirmed", "confirming", "logged", "published", "silent", "waiting")  # fmt: skip

    def __init__(self, channel: Channel, connection: Connection, vhost: Vhost, tally: ChannelPublishes) -> None:
        self._number = channel.number
        self._connection = connection
        self._committer = vhost.committer
        self._wide = vhost.wide
        self._tally = tally
        self._tells_dropped = connection.has_capability(_TELLS_DROPPED)
        self._entering = 0  # the first publish that has not entered all of its queues, 0 for none
        self._others: dict[int, int] | None = None  # NACK or DROPPED, by number; most channels have none
        self.closed = False
        self.silent = False
        self.confirming = False
        self.waiting = False
        self.published = 0
        self.confirmed = 0
        self.logged = 0

    def start(self) -> None:
        """Start to confirm publishes; the confirms follow earlier answers of the channel."""
        if not self.confirming:
            self.confirming = self.silent = True
            self._connection.when_sent(self._number, self._speak)

    def close(self) -> None:
        """Stop sending confirms, because the channel is closed."""
        self.closed = self.silent = True

    def _speak(self) -> None:
        """Start to send confirms, beginning with those that are due."""
        self.silent = self.closed
        if self.published > self.confirmed:
            self._ask()

    # -- what was published -------------------------------------------------------------------------------------------

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
        """Count the publishes of a run from one place up to another, and expect their confirms. HOT.

        Shapes: headers and bodies as in a PublishRun. ``targets[n]`` is the PublishEntry of the messages up to place
            ``stops[n]``; messages without an entry were not routed. `logged` of the publishes have to wait for the
            disk.
        Cost: one step for each entry, not for each message.
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
            tally.publish_in += messages  # hot: written here
            tally.publish_out += messages * reach  # hot: written here
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
        """Count one publish that is not part of a run, and expect its confirm."""
        self._tally.published(body, self.confirming)
        if self.confirming:
            self.published += 1
            self._ask()

    def wait_for_disk(self) -> None:
        """Confirm the last publish after the next sync."""
        self.logged = self.published

    def wait_for_queues(self) -> None:
        """Confirm the last publish, which goes to very many queues, once all of them have it."""
        if self.confirming:
            self._entering = self._entering or self.published
            self._wide.when_entered(self._entered)

    def drop_last(self) -> None:
        """Confirm the last publish as a duplicate, if the client supports that."""
        if self.confirming and self._tells_dropped:
            self._answer_otherwise(self.published, DROPPED)

    def refuse(self, number: int) -> None:
        """Answer an unconfirmed publish with a nack, because a full queue refused it."""
        self._answer_otherwise(number, NACK)

    def _answer_otherwise(self, number: int, kind: int) -> None:
        if self._others is None:
            self._others = {}
        self._others[number] = kind

    def _entered(self) -> None:
        """Confirm a message that has entered very many queues."""
        self._entering = 0
        self._ask()

    def _ask(self) -> None:
        """Ask the committer to confirm the publishes."""
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    # -- what is safe -------------------------------------------------------------------------------------------------

    def confirm(self, upto: int) -> None:
        """Confirm every publish up to and including number `upto`, with as few frames as possible."""
        if self.silent:
            return
        if self._entering and upto >= self._entering:
            upto = self._entering - 1
        if self._others:
            self._tell_apart(self._others, upto)
            if not self._others:
                self._others = None  # an emptied dict keeps its size
        self._settle(ACK, upto)

    def _tell_apart(self, kinds: dict[int, int], upto: int) -> None:
        """Send the nacks and marked acks up to a number, and the acks between them."""
        last, kind = 0, ACK
        for number in sorted([number for number in kinds if number <= upto]):
            if number != last + 1 or kinds[number] != kind:  # one frame for consecutive numbers of a kind
                self._settle(kind, last)
                self._settle(ACK, number - 1)
            last, kind = number, kinds.pop(number)
        self._settle(kind, last)

    def _settle(self, kind: int, upto: int) -> None:
        """Send the ack or nack of all publishes up to a number. Shapes: `kind` is ACK, NACK or DROPPED.

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
