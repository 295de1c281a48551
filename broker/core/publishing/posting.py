"""Posting: add one message, with any properties, to queues that have rules.

The slow path of a publish, transactions, dead letters, delayed messages and moves post; a publish to plain queues goes
to the store directly.
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
    """Return whether every existing queue would accept a message; none of them dead-letters it."""
    return all(queue.deleted or queue.plain or queue.admits(message, dead_letter=False) for queue in queues)


class Poster:
    """Post the messages of one vhost."""

    def __init__(self, sweep: PolicySweep, store: MessageStore, wide: WidePublishes) -> None:
        self._sweep = sweep
        self._store = store
        self._wide = wide

    def post(self, message: Message, queues: Sequence[Queue], *, admitted: bool = False, number: bytes = b"") -> bool:
        """Add a message to its queues and return whether all of them accepted it.

        Very many queues are entered over several turns of the loop. A full queue that rejects publishes refuses the
        message; the others still accept it, as in RabbitMQ. Deleted queues are skipped, as are those that drop it as a
        duplicate. With `admitted` the queues are not checked for room, because the caller has done so. `number` is what
        a producer's sequence or a due time adds to the targets of the record.
        """
        if self._sweep.pending:
            self._sweep.update_rules(queues)
        takers: list[Queue] = []
        noting: list[Queue] = []
        waiting: list[tuple[Queue, int]] = []  # the queues that hold it until it is due
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
                        return True  # another message of its transaction was the first with the value
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
        if not refused:  # a message that its publisher sends again must not be known
            for queue in seen:
                self._enter(queue.noted(message), (queue,), (queue,))
        return not refused

    def post_run(self, messages: list[Message], queue: Queue) -> None:
        """Post messages to one queue in their order. Cost: one step for those in a row that share their properties."""
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
        """Have queues hold a message until it is due, and apply their limits."""
        for queue, due_ms in waiting:
            queue.keep_until(message, due_ms, number=number)
            number = b""  # it counts once
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
        """Add a message to queues that accept it, and apply their rules. `noting` are the deduplicating queues."""
        targets = Targets(tuple([queue.level_for(message) for queue in queues]))
        self._store.accept([message], [targets], [1], number)
        for queue in noting:
            queue.note_taken(message)
        for queue in queues:
            if not queue.plain or message.facts.expiration_ms is not None:
                queue.accepted(message)
