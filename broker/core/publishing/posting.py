"""Posting: add one message, with any properties, to queues that may have rules. Most publishes do not need this: plain
messages take a faster path to plain queues.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.message.message import Message
from broker.core.policy.policy_sweep import PolicySweep
from broker.core.publishing.message_store import MessageStore, Targets
from broker.core.publishing.publish_entry import WIDE_QUEUES
from broker.core.publishing.wide_publishes import WidePublishes
from broker.core.queue.duplicates import value_of
from broker.core.queue.kinds import SeenQueue
from broker.core.queue.queue import Queue


def all_admit(message: Message, queues: Sequence[Queue]) -> bool:
    """Return whether all queues that still exist would accept a message. A refused message is not dead-lettered."""
    return all(queue.deleted or queue.plain or queue.admits(message, dead_letter=False) for queue in queues)


class Poster:
    """Post the messages of one vhost."""

    def __init__(self, sweep: PolicySweep, store: MessageStore, wide: WidePublishes) -> None:
        self._sweep = sweep
        self._store = store
        self._wide = wide

    def post(self, message: Message, queues: Sequence[Queue], *, admitted: bool = False, number: bytes = b"") -> bool:
        """Add a message to its queues and return whether no queue refused it.

        A message for very many queues enters them over several turns of the loop. A full queue that rejects publishes
        refuses the message; the other queues still accept it, as in RabbitMQ. Deleted queues and queues that have a
        duplicate are skipped. With `admitted`, the caller has checked that the queues have room. `number` is a
        producer's sequence number, to be prepended to the targets in the record.
        """
        if self._sweep.pending:
            self._sweep.update_rules(queues)
        takers: list[Queue] = []
        noting: list[Queue] = []
        waiting: list[tuple[Queue, int]] = []  # queues that hold the message, and when it is due there
        seen: list[SeenQueue] = []
        refused = False
        for queue in queues:
            if queue.deleted:
                continue
            if queue.plain:
                takers.append(queue)
            elif queue.duplicates is not None and queue.repeats(message):
                if isinstance(queue, SeenQueue):
                    if not takers and not waiting and queue.stops(value_of(message)):
                        return True  # an earlier message of the transaction has the same value
                    seen.append(queue)
            elif not admitted and not queue.admits(message):
                refused = True
            elif (due_ms := queue.due_ms_of(message)) is not None:
                waiting.append((queue, due_ms))
            else:
                takers.append(queue)
                if queue.duplicates is not None:
                    noting.append(queue)
        if waiting:
            with self._store.transaction():
                self._hold(message, waiting, number)
                self._enter_all(message, takers, noting)
        elif takers:
            self._enter_all(message, takers, noting, number)
        if not refused:  # the publisher may send a refused message again: it must not count as a duplicate
            for queue in seen:
                self._enter(queue.noted(message), (queue,), (queue,))
        return not refused

    def post_run(self, messages: list[Message], queue: Queue) -> None:
        """Post messages to one queue in their order. Cost: one step per message; in a plain queue, one per run of
        messages with the same plain facts.
        """
        if self._sweep.pending:
            self._sweep.update_rules((queue,))
        start = 0
        while start < len(messages):
            facts = messages[start].facts
            stop = start + 1
            while queue.plain and facts.plain and stop < len(messages) and messages[stop].facts is facts:
                stop += 1
            if stop > start + 1:
                targets = Targets((queue.level_for(messages[start]),))
                self._store.accept(messages[start:stop], [targets], [stop - start])
            else:
                self.post(messages[start], (queue,))
            start = stop

    def _hold(self, message: Message, waiting: Sequence[tuple[Queue, int]], number: bytes) -> None:
        """Add a message to the holding levels of queues until it is due, and enforce the queues' limits."""
        for queue, due_ms in waiting:
            queue.keep_until(message, due_ms, number=number)
            number = b""  # a producer's number is recorded once
            queue.enforce()

    def _enter_all(
        self, message: Message, takers: Sequence[Queue], noting: Sequence[Queue], number: bytes = b""
    ) -> None:
        """Add a message to queues that accept it, over several turns if there are very many."""
        if len(takers) >= WIDE_QUEUES and self._store.enters_later:
            self._wide.begin(message, [queue.level_for(message) for queue in takers], number)
        elif takers:
            self._enter(message, takers, noting, number)

    def _enter(self, message: Message, queues: Sequence[Queue], noting: Sequence[Queue], number: bytes = b"") -> None:
        """Add a message to queues that accept it, and apply their rules. `noting` are those that deduplicate."""
        targets = Targets(tuple([queue.level_for(message) for queue in queues]))
        self._store.accept([message], [targets], [1], number)
        for queue in noting:
            queue.note_taken(message)
        for queue in queues:
            if not queue.plain or message.facts.expiration_ms is not None:
                queue.accepted(message)
