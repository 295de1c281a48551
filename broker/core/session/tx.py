"""The Tx class on one channel after tx.select: commit and rollback.

Publishes are checked and routed when they arrive, as in RabbitMQ. At commit, publishes and acknowledgements take effect
in one log record: after a crash, either the whole transaction or nothing of it has happened.
Source: AMQP 0-9-1, class tx; rabbit_channel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pamqp import commands

from broker.amqp.channel import Channel
from broker.amqp.errors import ChannelError
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.core.queue.rules import DROP_HEAD
from broker.core.queue.unacked import SlotDelivery
from broker.core.session.basic import BasicSession
from broker.core.session.class_session import ClassSession
from broker.core.session.client import SessionClient
from broker.core.session.publication import Publication
from broker.core.session.publisher import Publisher
from broker.core.vhost import Vhost
from broker.slots.slot import Slot

OVERHEAD_BYTES: Final = 512  # the memory of a stored acknowledgement, or of a stored publish without header and body
COMMIT: Final = (90, 20)  # tx.commit
PARTIAL: Final = "partial tx completion"
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
        self.acknowledgements: list[tuple[Acknowledge, list[SlotDelivery]]] = []
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
        action = partial(self._basic.requeue, failed=failed) if requeue else self._basic.reject
        self._set_aside(action, tag, multiple=multiple)

    def _set_aside(self, acknowledge: Acknowledge, tag: int, *, multiple: bool) -> None:
        deliveries = self._basic.unacked.set_aside(tag, multiple=multiple)
        self._keep(OVERHEAD_BYTES * sum([delivery.count for delivery in deliveries]))
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
        """Perform the stored publishes and acknowledgements; commit-ok is sent once they are on disk. Messages that may
        be dead-lettered are read into memory first.
        Raises: ChannelError 403, 406 if a publish is refused: the transaction then has no effect, whereas RabbitMQ
            performs the remaining part. Postponed, in a cluster.
        """
        if self.publications and self._vhost.refusal:
            raise ChannelError(406, self._vhost.refusal)
        sweep = self._vhost.sweep
        if sweep.pending:  # policies have changed since the publishes were routed
            for publication in self.publications:
                sweep.update_rules(publication.queues)
        missing = self._on_disk()
        if missing is not None:
            # Rejected messages must be in memory, so that their dead letters are part of the transaction's record.
            self._channel.connection.hold()
            self._vhost.ports.read(*missing, self._commit_again)
            return
        for publication in self.publications:
            publication.renew(self._vhost.producers)
        if not self._fits():
            raise ChannelError(406, PARTIAL)
        store = self._vhost.store
        progress = store.progress
        numbered = any(publication.producer is not None for publication in self.publications)
        store.note_origin((self, self.published + 1))
        self._basic.unacked.drop_aside()
        try:
            with store.transaction():
                for publication in self.publications:
                    self._publisher.detailed.send(publication, admitted=True)
                for acknowledge, deliveries in self.acknowledgements:
                    acknowledge(deliveries)
                settled = self._vhost.ports.settled
                while settled:  # now, not at the end of the turn, so that the transaction includes them
                    settled.pop().log_settlements()
        finally:
            store.note_origin(None)
        self._forget()
        self.published += 1
        # The commit of a duplicate waits for the original, which may not be on disk yet.
        if store.progress != progress or (numbered and store.needs_sync):
            self.logged = self.published
        self._channel.connection.hold()
        self.waiting = True
        if self._vhost.wide.pending:
            self._vhost.wide.when_entered(partial(self._vhost.committer.wait, self))
        else:
            self._vhost.committer.wait(self)

    def rollback(self) -> None:
        """Discard the stored publishes, and make the acknowledged messages unacked again."""
        self._forget()
        self._channel.send(commands.Tx.RollbackOk())

    def close(self) -> None:
        """Roll back, because the channel is closed."""
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
        self.publications = []
        self.acknowledgements = []
        self.kept_bytes = 0
        self._basic.unacked.put_back()

    # -- before a commit ----------------------------------------------------------------------------------------------

    def _commit_again(self) -> None:
        connection = self._basic.connection
        connection.release()
        if not self.closed:
            try:
                self.commit()
            except ChannelError as error:
                self._fail(error)

    def _fail(self, error: ChannelError) -> None:
        """Close the channel because a commit has failed."""
        error.blame(*COMMIT)
        self._session.connection.fail(error, self._channel.number)

    def _on_disk(self) -> tuple[Level, Slot] | None:
        """Return a slot that must be read first, because one of its messages may be dead-lettered; else None."""
        for acknowledge, deliveries in self.acknowledgements:
            if acknowledge == self._basic.settle:
                continue
            for delivery in deliveries:
                level, slot = delivery.level, delivery.slot
                if slot.contents is None and level.queue.rules.dead_letter_exchange is not None and not level.deleted:
                    return level, slot
        return None

    def _fits(self) -> bool:
        """Return whether every queue that rejects publishes has room for the messages that are routed to it."""
        wanted: dict[Queue, list[int]] = {}
        for publication in self.publications:
            for queue in () if publication.used else publication.queues:
                rules = queue.rules
                if rules.limited and rules.overflow != DROP_HEAD and not queue.deleted:
                    wanted.setdefault(queue, []).append(len(publication.body))
        return all(queue.fits(sizes) for queue, sizes in wanted.items())
