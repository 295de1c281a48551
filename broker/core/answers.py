"""Answers to methods that make durable changes: each is sent once the record of its change is on disk. Later methods
are processed at once, but an answer about an object waits for the last change of the object.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from broker.amqp.channel import Channel
from broker.amqp.codec import Method
from broker.amqp.output import ConnectionOutput, Withheld
from broker.core.confirmable import Confirmer
from broker.core.topology.changes import Subject
from broker.core.topology.deferred_unbinding import DeferredUnbinding

NOTHING: Final = 0  # changes are numbered from 1: an answer with this number waits for none


class Mark(NamedTuple):
    """Counts taken before a method runs: durable changes, and bundles of bindings to be removed in later turns."""

    changes: int
    bundles: int


class Answers:
    """The answers of one vhost that wait for the disk.

    The committer treats this object as a Confirmable, like a publisher: its work is the durable changes, numbered in
    the order of their records.
    Shapes: ``_unsafe`` maps subjects to the numbers of their last changes, in ascending order, until these are on disk.
    Invariant: every connection with a withheld answer is in ``_connections``.
    """

    def __init__(self, committer: Confirmer, deferred: DeferredUnbinding) -> None:
        self._committer = committer
        self._deferred = deferred
        self._unsafe: dict[Subject, int] = {}
        self._connections: dict[ConnectionOutput, None] = {}
        self.published = 0
        self.confirmed = 0
        self.logged = 0
        self.waiting = False

    # -- changes ------------------------------------------------------------------------------------------------------

    def changed(self, subject: Subject) -> None:
        """Record a durable change whose log record has just been appended."""
        self.published = self.logged = number = self.published + 1
        self._unsafe.pop(subject, None)  # keeps the numbers in ascending order
        self._unsafe[subject] = number
        if not self.waiting:
            self.waiting = True
            self._committer.wait(self)

    def mark(self) -> Mark:
        """Return a mark. An answer that is sent with it waits for every change since, not only for its subject's."""
        return Mark(self.published, self._deferred.begun)

    # -- answers ------------------------------------------------------------------------------------------------------

    def send(self, channel: Channel, method: Method, subject: Subject, mark: Mark | None = None) -> None:
        """Send an answer once its subject's last change is on disk, or all changes if there were any since `mark`."""
        number = self._awaited(subject, mark)
        if number == NOTHING:
            channel.send(method)
        else:
            self._keep(channel, self.promise(channel, method), number, mark)

    def promise(self, channel: Channel, method: Method | None) -> Withheld:
        """Reserve the place of an answer on its channel: the channel's later answers wait until `fulfil` or `release`
        is called. Without a method, nothing is sent in this place.
        """
        answer = channel.withhold(method)
        self._connections[channel.connection] = None
        return answer

    def fulfil(self, channel: Channel, answer: Withheld, subject: Subject, mark: Mark) -> None:
        """Send a promised answer as `send` would."""
        self._keep(channel, answer, self._awaited(subject, mark), mark)

    def release(self, channel: Channel, answer: Withheld) -> None:
        """End a promise that waits for no change, so that the channel's later answers can be sent."""
        self._settle(channel.connection, answer, NOTHING)

    def _awaited(self, subject: Subject, mark: Mark | None) -> int:
        if mark is not None and mark.changes != self.published:
            return self.published
        return self._unsafe.get(subject, NOTHING)

    def _keep(self, channel: Channel, answer: Withheld, number: int, mark: Mark | None) -> None:
        """Withhold an answer until its change is on disk and the bindings that the change deleted are removed."""
        settle = partial(self._settle, channel.connection, answer, number)
        if number != NOTHING and mark is not None and mark.bundles != self._deferred.begun:
            self._deferred.when_removed(settle)
        else:
            settle()

    def _settle(self, connection: ConnectionOutput, answer: Withheld, number: int) -> None:
        answer.wait_for(number)
        if number <= self.confirmed and not connection.send_withheld(self.confirmed):
            self._connections.pop(connection, None)

    # -- commits ------------------------------------------------------------------------------------------------------

    def confirm(self, upto: int) -> None:
        """Send the answers that waited for changes up to and including number `upto`."""
        self.confirmed = upto
        for subject, number in list(self._unsafe.items()):
            if number > upto:
                break
            del self._unsafe[subject]
        for connection in list(self._connections):
            if not connection.send_withheld(upto):
                self._connections.pop(connection, None)

    def abandon(self) -> None:
        """Discard the waiting answers, because the vhost and its connections are ending."""
        connections, self._connections = list(self._connections), {}
        for connection in connections:
            connection.drop_withheld()
