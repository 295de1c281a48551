"""The Tx class on one channel after tx.select: commit and rollback.

Publishes are checked and routed when they arrive, as in RabbitMQ. At commit, publishes and acknowledgements take effect
in one log record: after a crash, either the whole transaction or nothing of it has happened.
Source: AMQP 0-9-1, class tx; rabbit_channel.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import chain
from typing import Final

from pamqp import commands

from broker.amqp.channel import Channel
from broker.amqp.errors import ChannelError
from broker.core.deadlines import TURN_SHARE
from broker.core.postponed import Postponed
from broker.core.publishing.wide_publishes import QUEUES_PER_UNIT
from broker.core.queue.level import RETURN_UNITS
from broker.core.queue.queue import Queue
from broker.core.queue.rules import DROP_HEAD
from broker.core.queue.unacked import SlotDelivery
from broker.core.session.basic import BasicSession, by_parts
from broker.core.session.class_session import ClassSession
from broker.core.session.client import SessionClient
from broker.core.session.publication import Publication
from broker.core.session.publisher import Publisher
from broker.core.sliced_work import free
from broker.core.vhost import Vhost
from broker.slots.states import Tenure

OVERHEAD_BYTES: Final = 512  # the memory of a stored acknowledgement, or of a stored publish without header and body
COMMIT: Final = (90, 20)  # tx.commit
PARTIAL: Final = "partial tx completion"
STEP_UNITS: Final = 16  # of the publishes that are sent in one step
CHECKS_PER_UNIT: Final = 16
REJECTED_AT_ONCE: Final = 32  # messages that are dead-lettered in one step: half a millisecond
Acknowledge = Callable[["list[SlotDelivery]"], None]


class TxSession(ClassSession):
    """Store the publishes and acknowledgements of a transactional channel until commit or rollback.

    To the committer this is a Confirmable: each commit has a number, and is answered when it is on disk. Until then the
    connection is held, so that no method overtakes the answer.
    Units: `kept_bytes` is the memory of the transaction, `limit_bytes` its limit.
    """

    def __init__(
        self, channel: Channel, session: SessionClient, vhost: Vhost, publisher: Publisher, basic: BasicSession
    ) -> None:
        super().__init__(channel, session, vhost)
        self._publisher = publisher
        self._basic = basic
        self.limit_bytes = channel.connection.limits.tx_max_bytes
        self.kept_bytes = 0
        self.publications: list[Publication] = []
        self.acknowledgements: list[tuple[Acknowledge, list[SlotDelivery]]] = []  # of neighbours with equal effect
        self._requeue: Acknowledge = partial(basic.requeue, failed=False)
        self._requeue_failed: Acknowledge = partial(basic.requeue, failed=True)
        self._is_refused = False  # whether a full queue has refused a message of the current commit
        self.closed = False
        self.waiting = False
        self.published = 0
        self.confirmed = 0
        self.logged = 0

    # -- publishes and acknowledgements -------------------------------------------------------------------------------

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """Store a publish for the commit. Raises: as Publisher.publish; ChannelError 406 beyond the limit."""
        is_plain = self._channel.facts.mark is None
        if not is_plain and self._publisher.detailed.await_producer(partial(self.publish, payload, header, body)):
            return
        publication = self._publisher.examine(payload, header, body)
        self._keep(OVERHEAD_BYTES + len(header) + len(body))
        self.publications.append(publication)

    def publish_run(self, _payloads: list[bytes], _headers: list[bytes], _bodies: list[bytes], start: int) -> int:
        """Accept no run, so that `publish` is called with each message."""
        return start

    def ack(self, tag: int, *, multiple: bool) -> None:
        """Store an ack for the commit. Raises: ChannelError 406 for an unknown delivery tag, and beyond the limit."""
        self._set_aside(self._basic.settle, tag, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool, requeue: bool, failed: bool) -> None:
        """Store a nack or reject for the commit. Raises: as `ack`."""
        action: Acknowledge = self._basic.reject
        if requeue:
            action = self._requeue_failed if failed else self._requeue
        self._set_aside(action, tag, multiple=multiple)

    def _set_aside(self, acknowledge: Acknowledge, tag: int, *, multiple: bool) -> None:
        deliveries = self._basic.unacked.set_aside(tag, multiple=multiple)
        self._keep(OVERHEAD_BYTES * sum([delivery.count for delivery in deliveries]))
        if self.acknowledgements and self.acknowledgements[-1][0] == acknowledge:
            self.acknowledgements[-1][1].extend(deliveries)
        else:
            self.acknowledgements.append((acknowledge, deliveries))

    def _keep(self, size_bytes: int) -> None:
        """Count the memory of the transaction. Raises: ChannelError 406, RabbitMQ's code for a message that is too
        large.
        """
        self.kept_bytes += size_bytes
        if self.kept_bytes > self.limit_bytes:
            raise ChannelError(
                406, f"transaction size {self.kept_bytes} is larger than configured max size {self.limit_bytes}"
            )

    # -- commit and rollback ------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Perform the stored publishes and acknowledgements, over several turns if they are many; commit-ok is sent
        once they are on disk.

        If a publish is refused, the channel is closed with 403 or 406, and the transaction has no effect, whereas
        RabbitMQ performs the remaining part.
        Raises: ChannelError 406 during an alarm.
        """
        if self.publications and self._vhost.refusal:
            raise ChannelError(406, self._vhost.refusal)
        self._channel.connection.hold()
        self._begin()

    def rollback(self) -> None:
        """Discard the stored publishes, and make the acknowledged messages unacked again."""
        self._forget()
        self._channel.send(commands.Tx.RollbackOk())

    def close(self) -> None:
        """Roll back, because the channel is closed. A commit that has begun takes effect."""
        self.closed = True
        self._forget()

    def refuse(self, number: int) -> None:
        """Record that a full queue has refused a message of a commit; the commit then has no effect."""
        self._is_refused = number > self.confirmed

    def confirm(self, upto: int) -> None:
        """Answer a commit that is on disk or was refused, unless the channel was closed; release the connection."""
        if upto <= self.confirmed:
            return
        self.confirmed = upto
        self._channel.connection.release()
        is_refused, self._is_refused = self._is_refused, False
        if self.closed:
            return
        if is_refused:
            self._fail(ChannelError(406, PARTIAL))
        else:
            self._channel.send(commands.Tx.CommitOk())

    def _forget(self) -> None:
        """Discard the transaction; its memory is freed over several turns."""
        if self.publications:
            self._vhost.ports.sliced.run(free(self.publications))
        self.publications = []
        self.acknowledgements = []
        self.kept_bytes = 0
        self._basic.unacked.put_back()

    def _fail(self, error: ChannelError) -> None:
        """Close the channel because a commit has failed."""
        error.blame(*COMMIT)
        self._session.connection.fail(error, self._channel.number)

    # -- the steps of a commit ----------------------------------------------------------------------------------------

    def _begin(self, postponed: Postponed | None = None) -> None:
        """Begin to commit after earlier commits of the vhost have ended, because the log has one transaction at a time.
        In a cluster this is called again with the answer to a postponement.
        """
        self._vhost.ports.sliced.run_in_line(self._run(postponed))

    def _run(self, postponed: Postponed | None) -> Iterator[int]:
        """Commit in steps, and yield the cost of each in units of the turn's share; report errors to the client."""
        try:
            if postponed is not None:
                postponed.check()
            numbered = yield from self._check()
            if not self.closed:
                yield from self._perform(numbered=numbered)
                return
        except ChannelError as error:
            if not self.closed:
                self._fail(error)
        except Postponed as again:
            again.begin(partial(self._begin, again))
            return
        self._channel.connection.release()

    def _check(self) -> Generator[int, None, bool]:
        """Read in steps the rejected messages that are on disk, so that their dead letters are part of the transaction,
        then check that all publishes can be performed. Return whether a publish has a producer's number.
        Raises: ChannelError 403, 406; Postponed, in a cluster.
        """
        vhost = self._vhost
        numbered = False
        for acknowledge, deliveries in self.acknowledgements:
            for place, delivery in enumerate(deliveries if acknowledge != self._basic.settle else (), 1):
                yield from self._load(delivery)
                if place % CHECKS_PER_UNIT == 0:
                    yield 1
        wanted: dict[Queue, list[int]] = {}
        for place, publication in enumerate(self.publications, 1):
            if vhost.sweep.pending:  # policies have changed since the publish was routed
                vhost.sweep.update_rules(publication.queues)
            if publication.producer is not None:
                numbered = True
                publication.renew(vhost.producers)
            for queue in () if publication.used else publication.queues:
                rules = queue.rules
                if rules.limited and rules.overflow != DROP_HEAD and not queue.deleted:
                    wanted.setdefault(queue, []).append(len(publication.body))
            if place % CHECKS_PER_UNIT == 0:
                yield 1
        if not all(queue.fits(sizes) for queue, sizes in wanted.items()):
            raise ChannelError(406, PARTIAL)
        return numbered

    def _load(self, delivery: SlotDelivery) -> Iterator[int]:
        """Wait until messages that may be dead-lettered are in memory, unless the channel was closed, as when the read
        has failed.
        """
        level, slot = delivery.level, delivery.slot
        rules = level.queue.rules
        while (
            slot.contents is None
            and rules.dead_letter_exchange is not None
            and not level.deleted
            and slot.tenure is not Tenure.DELETED
        ):
            answers: list[None] = []
            self._vhost.ports.read(level, slot, partial(answers.append, None))
            while not answers:
                if self.closed:
                    return
                yield TURN_SHARE  # look again in the next turn

    def _perform(self, *, numbered: bool) -> Iterator[int]:
        """Publish and acknowledge in steps, which are one transaction of the log, together with the records of others.
        In a cluster it is one step, because one call of the database includes it. Free the transaction on the way.
        """
        vhost = self._vhost
        store = vhost.store
        progress = store.progress
        publications, self.publications = self.publications[::-1], []
        acknowledgements, self.acknowledgements = self.acknowledgements, []
        self.kept_bytes = 0
        self._basic.unacked.drop_aside()
        at_once = store.refuses_later
        if at_once:
            store.note_origin((self, self.published + 1))
        try:
            with store.transaction():
                for units in chain(self._publish(publications), self._acknowledge(acknowledgements)):
                    if not at_once:
                        yield units
                settled = vhost.ports.settled
                while settled:  # now, not at the end of the turn, so that the transaction includes them
                    settled.pop().log_settlements()
        finally:
            if at_once:
                store.note_origin(None)
        self.published += 1
        # The commit of a duplicate waits for the original, which may not be on disk yet.
        if store.progress != progress or (numbered and store.needs_sync):
            self.logged = self.published
        self.waiting = True
        if vhost.wide.pending:
            vhost.wide.when_entered(partial(vhost.committer.wait, self))
        else:
            vhost.committer.wait(self)

    def _publish(self, publications: list[Publication]) -> Iterator[int]:
        """Send publications in steps, the last one first."""
        detailed = self._publisher.detailed
        units = 0
        while publications:
            publication = publications.pop()
            detailed.send(publication, admitted=True)
            units += 1 + len(publication.queues) // QUEUES_PER_UNIT
            if units >= STEP_UNITS:
                yield units
                units = 0
        yield units

    def _acknowledge(self, acknowledgements: list[tuple[Acknowledge, list[SlotDelivery]]]) -> Iterator[int]:
        """Acknowledge in steps."""
        for acknowledge, deliveries in acknowledgements:
            if acknowledge != self._basic.reject:
                yield from by_parts(deliveries, acknowledge, 1 if acknowledge == self._basic.settle else RETURN_UNITS)
                self._vhost.ports.sliced.run(free(deliveries))
                continue
            for delivery in deliveries:
                for part in delivery.parts(REJECTED_AT_ONCE):
                    if not self._vhost.store.refuses_later:  # nothing can be read within one step
                        yield from self._load(part)
                    self._basic.reject([part])
                    yield 1
