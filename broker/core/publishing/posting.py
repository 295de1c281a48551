"""Posting: one message into the queues it was routed to, with one record for all that are durable.

Whatever has a message for queues that are not all plain goes this way: the publisher's slow road, transactions, dead
letters, delayed messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.core.message.message import OVERHEAD_BYTES, Message
from broker.store.record import PERSISTENT, TARGET, encode_message

if TYPE_CHECKING:
    from broker.core.policy.policy_sweep import PolicySweep
    from broker.core.queue.queue import Queue
    from broker.core.queue.stream import Stream
    from broker.store.message_log import MessageLog

__all__ = ["Poster", "all_admit", "charge_bytes"]

pack_target: Final = TARGET.pack


def charge_bytes(header: bytes, body: bytes, queues: int) -> int:
    """Return what each of so many queues counts for a message: its share of the memory."""
    return OVERHEAD_BYTES + (len(header) + len(body)) // max(queues, 1)


def all_admit(message: Message, queues: Sequence[Queue]) -> bool:
    """Return whether all of the queues that live would take a message; one that would not does not dead-letter it."""
    return all(queue.deleted or queue.plain or queue.admits(message, bury=False) for queue in queues)


class Poster:
    """Posts the messages of one vhost."""

    __slots__ = ("_log", "_sweep")

    def __init__(self, sweep: PolicySweep, log: MessageLog) -> None:
        self._sweep = sweep
        self._log = log

    def post(self, message: Message, queues: Sequence[Queue], *, admitted: bool = False, number: bytes = b"") -> bool:
        """Give a message to its queues and return whether all of them took it.

        A full queue that rejects publishes refuses; the others take it all the same, as in RabbitMQ. Queues that are
        deleted by now are passed over. With `admitted` nobody is asked: the caller has. `number` is what a producer's
        sequence adds to the targets.
        """
        if self._sweep.pending:
            self._sweep.update_rules(queues)
        living = [queue for queue in queues if not queue.deleted]
        takers = [queue for queue in living if admitted or queue.plain or queue.admits(message)]
        streams = [queue.stream_for(message) for queue in takers]
        persistent = message.facts.persistent
        recorded = [stream for stream in streams if (stream.durable if persistent else stream.persists_all)]
        if recorded:
            self._record(message, recorded, number)
        if len(recorded) < len(streams):
            # What durable queues take without a record must not point to that of the others.
            unrecorded = message.copy() if recorded and not persistent else message
            for stream in streams:
                if not (stream.durable if persistent else stream.persists_all):
                    stream.accept(unrecorded)
        for queue in takers:
            if not queue.plain or message.facts.expiration_ms is not None:
                queue.accepted(message)
        return len(takers) == len(living)

    def _record(self, message: Message, streams: Sequence[Stream], number: bytes) -> None:
        """Has streams take a message and appends its one record."""
        log = self._log
        segment = log.position >> 32
        targets = number + b"".join(
            [pack_target(stream.number, stream.accept_logged(message, segment)) for stream in streams]
        )
        record = encode_message(
            log.synced,
            message.timestamp_ms,
            PERSISTENT if message.facts.persistent else 0,
            message.envelope.route,
            message.header,
            message.body,
            targets,
        )
        message.position = log.append(record)
        message.record_bytes = len(record)
