"""Posting: one message into queues that have rules, whatever it asks of the broker.

The slow path of a publish, transactions, dead letters, delayed messages and moves post; a publish to plain queues goes
to the store directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.core.message.message import OVERHEAD_BYTES, Message
from broker.core.publishing.message_store import MessageStore, Targets
from broker.core.publishing.publish_entry import WIDE_QUEUES

if TYPE_CHECKING:
    from broker.core.policy.policy_sweep import PolicySweep
    from broker.core.publishing.wide_publishes import WidePublishes
    from broker.core.queue.queue import Queue

__all__ = ["Poster", "all_admit", "charge_bytes"]


def charge_bytes(header: bytes, body: bytes, queues: int) -> int:
    """Return what each of `queues` queues counts for a message: its share of the memory."""
    return OVERHEAD_BYTES + (len(header) + len(body)) // max(queues, 1)


def all_admit(message: Message, queues: Sequence[Queue]) -> bool:
    """Return whether every queue that lives would take a message; none dead-letters it."""
    return all(queue.deleted or queue.plain or queue.admits(message, dead_letter=False) for queue in queues)


class Poster:
    """Posts the messages of one vhost."""

    __slots__ = ("_store", "_sweep", "_wide")

    def __init__(self, sweep: PolicySweep, store: MessageStore, wide: WidePublishes) -> None:
        self._sweep = sweep
        self._store = store
        self._wide = wide

    def post(self, message: Message, queues: Sequence[Queue], *, admitted: bool = False, number: bytes = b"") -> bool:
        """Give a message to its queues and return whether all of them took it.

        Very many queues are entered over several turns of the loop. A full queue that rejects publishes refuses the
        message; the others still take it, as in RabbitMQ.
        Queues that are deleted by now are passed over. With `admitted` no queue is asked: the caller has asked them.
        `number` is what a producer's sequence or a due time adds to the targets of the record.
        """
        if self._sweep.pending:
            self._sweep.update_rules(queues)
        takers: list[Queue] = []
        waiting: list[tuple[Queue, int]] = []  # the queues that hold it until it is due
        refused = False
        for queue in queues:
            if not queue.deleted:
                if not admitted and not queue.plain and not queue.admits(message):
                    refused = True
                elif queue.plain or (due_ms := queue.due_ms_of(message)) is None:
                    takers.append(queue)
                else:
                    waiting.append((queue, due_ms))
        if waiting:
            with self._store.transaction():
                for queue, due_ms in waiting:
                    queue.keep_until(message, due_ms, number=number)
                    number = b""  # it counts once
                    queue.enforce()
                self._enter(message, takers, number)
        else:
            self._enter(message, takers, number)
        return not refused

    def _enter(self, message: Message, takers: Sequence[Queue], number: bytes) -> None:
        """Put a message into queues."""
        if len(takers) >= WIDE_QUEUES and self._store.enters_later:
            self._wide.begin(message, [queue.level_for(message) for queue in takers], number)
            return
        if takers:
            targets = Targets(tuple([queue.level_for(message) for queue in takers]))
            self._store.accept([message], [targets], [1], number)
        for queue in takers:
            if not queue.plain or message.facts.expiration_ms is not None:
                queue.accepted(message)
