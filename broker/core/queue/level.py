"""A level of a queue: dense message ids, a slot manager, and a number in the store.

A queue has one level, or one per priority, and a holding level if messages wait until they are due. A level settles,
requeues and dead-letters delivered messages, and logs these changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count
from typing import Any, Final

from broker.core.message.message import Message, charge_of
from broker.core.queue.level_owner import NO_QUEUE, LevelOwner
from broker.core.queue.ports import QueuePorts
from broker.core.queue.rules import can_keep_poisoned, is_poisoned_name, poisoned_name
from broker.core.sliced_work import MESSAGES_PER_UNIT
from broker.core.statistics.delivery_tally import DeliveryTally
from broker.event_log import get_logger
from broker.slots.manager import SlotManager
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot, dense, single
from broker.slots.states import Tenure
from broker.store.checkpoint import QueueState
from broker.store.recorder import Recorder
from broker.store.segment import OFFSET_BITS
from broker.store.spill import SPILLED_SEGMENT
from broker.store.store import VhostStore

_log = get_logger()

HOLDING_PRIORITY: Final = 256  # the priority of a holding level, above every priority of a message
POISON: Final = "delivery_limit"  # the reason for which a poisoned message is dead-lettered
BATCH_MESSAGES: Final = 100  # messages dead-lettered or dropped before the turn's share is checked again
RETURN_UNITS: Final = 4  # the least cost of requeueing messages of one slot, in units of the turn's share
CATCH_UP_SLOTS: Final = 16  # the messages of at most this many slots are requeued before the next delivery
RUN_MIN: Final = 64  # at least this many consecutive settled messages get a log record of their own

_serials: Final = count()  # a tie-breaker, so that the heap never compares slots


class Level:
    """One level of a queue.

    Shapes: ``before_next``, if set, is called once, with the level, before the next message gets its id, and may append
        a message itself. ``returning`` is a heap, by slot, of returned messages that are not yet requeued; each entry
        states whether the delivery failed.
    Invariant: ``number`` identifies the level in the store and is never reused. Every message of a level with
        ``persists_all`` has a record in the log, whatever its delivery mode.
    """

    __slots__ = ("_first_id", "_logged_dropped", "_pending", "_ports", "_recorder", "before_next", "deleted", "durable",
                 "manager", "number", "octets", "persists_all", "priority", "queue", "returning", "tally")  # fmt: skip

    def __init__(
        self, queue: LevelOwner, priority: int, number: int, ports: QueuePorts[Level, Any], persists_all: bool = False
    ) -> None:
        # Compiled code lays attributes out in this order. Those used for every message share few cache lines.
        self.queue = queue
        self.manager = SlotManager(
            ports.window_messages, ports.window_bytes, on_open=self._slot_opened, on_delete=self._slot_deleted
        )
        self.tally = DeliveryTally()
        self.before_next: Callable[[Level], None] | None = None
        self.durable = queue.durable
        self.persists_all = persists_all and queue.durable
        self.deleted = False
        self.number = number
        self.octets = number.to_bytes(8, "big")  # the number, encoded as in the targets of a record
        self.priority = priority
        self.returning: list[tuple[int, int, Slot, Sequence[int], bool]] = []
        self._logged_dropped = False  # whether a drop of poisoned messages was logged
        self._pending: list[Sequence[int]] = []  # message ids settled in this loop turn and not yet logged
        self._ports = ports
        self._recorder: Recorder = ports.store.recorder
        self._first_id = self.manager.next_id

    @classmethod
    def ended(cls, ports: QueuePorts[Level, Any]) -> Level:
        """Return a level that remains empty and ignores settlements, for a deleted queue."""
        level = Level(NO_QUEUE, 0, 0, ports)
        level.deleted = True
        level.manager.ignore_slots()  # break the reference cycle with the manager
        return level

    def __repr__(self) -> str:
        return f"Level({self.queue.name!r}, level={self.priority}, number={self.number})"

    @property
    def published(self) -> int:
        """The number of messages that have entered the level since the broker started."""
        return self.manager.next_id - self._first_id

    def message_id(self, slot: Slot, index: int) -> int:
        """Return the id by which operators identify a message."""
        return slot.first + index

    @property
    def store(self) -> VhostStore:
        """The store that contains the level's paged-out messages."""
        return self._ports.store

    @property
    def is_holding(self) -> bool:
        """Whether this is a holding level, whose messages wait until they are due."""
        return self.priority == HOLDING_PRIORITY or self.queue.is_holding

    def restore(self, state: QueueState, *, redelivered: bool) -> None:
        """Restore the messages that recovery has found, all of which are on disk."""
        slots = [
            Slot.restored(
                found.first,
                found.end - found.first,
                found.settled,
                found.returns,
                set(found.segments),
                charge_bytes=found.size_bytes,
                recovered=redelivered or found.redelivered,
            )
            for found in state.slots
        ]
        self.manager.restore(state.next_id, slots)
        self._first_id = state.next_id
        if self.manager.sizes is not None:
            self._count_sizes()

    def call_before_next(self, call: Callable[[Level], None] | None) -> None:
        """Call a function once, before the next message gets its id; None cancels the call."""
        self.before_next = call

    def run_before_next(self) -> None:
        """Call the function that `call_before_next` has set, if any."""
        call, self.before_next = self.before_next, None
        if call is not None:
            call(self)

    def note_returns(self, slot: Slot, index: int, returns: ReturnRun) -> None:
        """Record how often a message was returned before it entered this level."""
        slot.note_returns((returns._replace(first=index, end=index + 1),))
        logged = self._logged_of(slot, (index,)) if self.durable else ()
        if logged:
            self._recorder.record_requeued(self._ports.clock.now_ms, self.number, slot.first, slot.returns_of(logged))

    # -- append -------------------------------------------------------------------------------------------------------

    def append(self, messages: list[Message], charge_bytes: int = 0, *, recorded: bool = False) -> None:
        """Append messages, with consecutive ids. HOT.

        Shapes: either all messages are `recorded` in the log for this level, or none is. `charge_bytes` is the sum of
            their charges, or 0 if the caller does not have it.
        """
        if self.before_next is not None:  # a caller that has recorded the messages has already called it
            self.run_before_next()
        manager = self.manager
        slot = manager.open
        at = slot.length
        if not manager.append(messages, charge_bytes or charge_of(messages)):
            manager.append_at_border(messages, [message.charge for message in messages])
        if self.durable:
            segment = messages[0].position >> OFFSET_BITS
            if not recorded or slot is not manager.open:
                self._note_records(slot, at, recorded=recorded)
            elif segment not in slot.segments or segment != messages[-1].position >> OFFSET_BITS:
                self._recorder.keep(slot, messages)
        queue = self.queue
        if queue.consumers.present:  # as in `_wake`, without the call
            if queue.lags:
                self._ports.credit.lagged += 1  # hot: set directly
            if not queue.awake:
                queue.wake_worker()

    def append_one(self, message: Message) -> None:
        """Append one message that has no log record. HOT."""
        manager = self.manager
        slot = manager.open
        if self.before_next is not None or not manager.append_one(message, message.charge):
            self.append([message])
            return
        if self.durable and not slot.mixed:
            slot.mark_mixed()
        self._wake()

    def _wake(self) -> None:
        """Schedule the delivery of appended messages in this loop turn, if there are consumers."""
        queue = self.queue
        if queue.consumers.present:
            if queue.lags:
                self._ports.credit.lagged += 1  # hot: set directly
            if not queue.awake:
                queue.wake_worker()

    def _note_records(self, slot: Slot, at: int, *, recorded: bool) -> None:
        """Record whether the messages from an index of a slot on have log records."""
        next_id = self.manager.next_id
        while True:
            if not recorded:
                slot.mark_mixed()
            else:
                assert slot.contents is not None
                self._recorder.keep(slot, slot.contents[at : slot.length])
            if slot.end == next_id:
                return
            slot = self.manager.slots[slot.end]
            at = 0

    # -- delivered messages -------------------------------------------------------------------------------------------

    def settle(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settle taken messages. If they have a record, their settlements are logged by the end of the loop turn."""
        if self.deleted:
            return
        if self.durable:
            self._note_settled(slot, indexes)
        self.manager.settle(slot, indexes)

    def settle_one(self, slot: Slot, index: int) -> None:
        """Settle one message as `settle` does. HOT."""
        if self.deleted:
            return
        if self.durable:
            if slot.mixed:
                if slot.segments:  # otherwise no message of the slot has a record
                    self._note_settled(slot, single(index))
            else:
                message_id = slot.first + index
                self._note_ids(range(message_id, message_id + 1))
        self.manager.settle_one(slot, index)

    def dead_letter(self, slot: Slot, indexes: Sequence[int], reason: str, *, at_once: bool = True) -> None:
        """Settle taken messages, and dead-letter them if the queue has a dead letter exchange or keeps poisoned ones.

        Messages to be dead-lettered that are on disk remain unacked until they are read. A dead letter is recorded
        before the settlement of its source: a crash in between duplicates the message, but does not lose it. Without
        `at_once`, the work on messages in memory is divided into turns.
        """
        if self.deleted or slot.tenure is Tenure.DELETED or not indexes:
            return
        if not self._dead_letters(reason):
            self.settle(slot, indexes)
        elif slot.contents is None:
            self._ports.read(self, slot, partial(self.dead_letter, slot, indexes, reason, at_once=at_once))
        else:
            self._publish_dead(slot, indexes, [slot.contents[index] for index in indexes], reason, at_once)

    def _publish_dead(
        self, slot: Slot, indexes: Sequence[int], messages: list[Message | None], reason: str, at_once: bool
    ) -> None:
        deadlines = self._ports.deadlines
        while indexes:
            if deadlines.units_left <= 0 and not at_once:
                rest = partial(self._publish_dead, slot, indexes, messages, reason, at_once)
                deadlines.next_turn((slot, indexes[0]), rest)
                return
            for message in messages[:BATCH_MESSAGES]:
                if message is not None:  # None: it could not be read, which was logged
                    self._ports.dead_letter(self.queue, message, reason)
            self.settle(slot, indexes[:BATCH_MESSAGES])
            indexes, messages = indexes[BATCH_MESSAGES:], messages[BATCH_MESSAGES:]

    def _dead_letters(self, reason: str) -> bool:
        """Return whether messages that are removed for a reason are published again."""
        return self.queue.rules.dead_letter_exchange is not None or (reason == POISON and self._keeps_poisoned)

    @property
    def _wants_poisoned(self) -> bool:
        """Whether the rules or the setting require that poisoned messages are kept."""
        keep = self.queue.rules.keep_poisoned
        return self._ports.keep_poisoned if keep is None else keep

    @property
    def _keeps_poisoned(self) -> bool:
        """Whether poisoned messages are kept in a queue of their own."""
        return self._wants_poisoned and can_keep_poisoned(self.queue.name)

    def _remove_poisoned(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Dead-letter poisoned messages, move them to the queue of poisoned messages, or drop them."""
        remove = partial(self.dead_letter, slot, indexes, POISON, at_once=False)
        if self.queue.rules.dead_letter_exchange is not None or not self._wants_poisoned:
            remove()
        elif self._keeps_poisoned:
            self._ports.with_poisoned(poisoned_name(self.queue.name), remove)
        else:
            if not self._logged_dropped:
                self._logged_dropped = True
                name = poisoned_name(self.queue.name)
                _log.error("poisoned.dropped", queue=self.queue.name, reason=f"the name '{name}' is too long")
            remove()

    def requeue(self, slot: Slot, indexes: Sequence[int], *, failed: bool) -> None:
        """Requeue messages, marked redelivered, or hold them for a delayed retry; remove those that exceed the delivery
        limit. Messages that could not be read from disk are lost.
        """
        if self.deleted:
            return
        contents = slot.contents
        if contents is not None and (lost := missing_among(contents, indexes)):
            _log.error("messages.lost", queue=self.queue.name, slot=slot.first, count=len(lost))
            self.settle(slot, lost)
            indexes = [index for index in indexes if index not in slot.acks]
            if not indexes:
                return
        limit = self.queue.rules.delivery_limit
        poisoned: list[int] = []
        if failed and limit is not None and not (self._keeps_poisoned and is_poisoned_name(self.queue.name)):
            poisoned = slot.at_limit(indexes, limit)
            if poisoned:
                over = set(poisoned)
                indexes = [index for index in indexes if index not in over]
        retry = self.queue.rules.retry
        if retry is not None and indexes and retry.holds(failed=failed):
            self._hold(slot, indexes, failed=failed)
            indexes = ()
        self.manager.requeue(slot, indexes, failed=failed)
        if indexes:
            self.queue.note_returned(self.priority, slot, indexes)
        if self.durable:
            logged = self._logged_of(slot, indexes)
            if logged:
                runs = slot.returns_of(logged)
                self._recorder.record_requeued(self._ports.clock.now_ms, self.number, slot.first, runs)
        if poisoned:
            self._remove_poisoned(slot, poisoned)
        self.queue.returned()

    def _hold(self, slot: Slot, indexes: Sequence[int], *, failed: bool) -> None:
        """Move returned messages to the queue's holding level until they are due for another delivery.

        Messages on disk remain unacked until they are read.
        """
        contents, retry = slot.contents, self.queue.rules.retry
        if self.deleted or slot.tenure is Tenure.DELETED:
            return
        if contents is None:
            self._ports.read(self, slot, partial(self._hold, slot, indexes, failed=failed))
            return
        now_ms = self._ports.clock.now_ms
        with self._ports.transaction():
            for index in indexes:
                message: Message | None = contents[index]
                if message is not None:  # None: it could not be read, which was logged
                    delivered = slot.delivery_count(index) + failed
                    returns = ReturnRun(0, 1, slot.acquired_count(index) + 1, delivered)
                    wait_ms = 0 if retry is None else retry.wait_ms(delivered)
                    self.queue.keep_until(message, now_ms + wait_ms, returns)
            self._ports.deadlines.spend(len(indexes))
            self.settle(slot, indexes)
            self.log_settlements()

    def take_back(self, slot: Slot, indexes: Sequence[int], *, failed: bool) -> None:
        """Collect a consumer's returned messages for `return_next`."""
        heappush(self.returning, (slot.first, next(_serials), slot, indexes, failed))

    def return_next(self) -> int:
        """Requeue returned messages of the first slot, either all failed or none, and return the cost in units."""
        returning = self.returning
        first, _, slot, indexes, failed = heappop(returning)
        parts = [indexes]
        while returning and returning[0][0] == first and returning[0][4] == failed:
            parts.append(heappop(returning)[3])
        if len(parts) > 1:
            indexes = dense(sorted(chain.from_iterable(parts)))
        self.requeue(slot, indexes, failed=failed)
        return RETURN_UNITS + len(parts) // RETURN_UNITS

    def catch_up(self) -> None:
        """Requeue returned messages that must precede the next delivery: those of the slots up to that of the first
        ready message, or of all slots in a strict queue.

        Cost: at most CATCH_UP_SLOTS slots in one call; usually one if the queue is not strict.
        """
        for _ in range(CATCH_UP_SLOTS):
            if not self.returning:
                return
            front = None if self.queue.strict else self.manager.front()
            if front is not None and front.first < self.returning[0][0]:
                return
            self._ports.deadlines.spend(self.return_next())

    def doubt(self, first: int) -> None:
        """Mark the messages from an id on as redelivered, because they may have been delivered before."""
        for slot in reversed(self.manager.slots.values()):
            slot.doubt(first)
            if slot.first <= first:
                return

    def lose(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settle ready messages anywhere in the level without delivering them."""
        self.manager.lose(slot, indexes)
        if self.durable:
            self._note_settled(slot, indexes)

    def lose_sealed(self, end: int) -> None:
        """Settle all messages below the id `end`, and let the next message have at least that id.

        Invariant: nothing has been published to the level since startup.
        """
        if self.manager.next_id < end:
            self.manager.skip_to(end)
            self._first_id = end
        for slot in list(self.manager.slots.values()):
            indexes = list(slot.acks.unsettled(0, min(slot.length, end - slot.first))) if slot.first < end else []
            if indexes:
                self.lose(slot, indexes)

    def purge(self) -> Iterator[int]:
        """Drop the ready messages slot by slot, and yield the number dropped from each. Unacked messages remain."""
        end = self.manager.next_id
        for slot in list(self.manager.slots.values()):
            if self.deleted:
                return
            if slot.tenure is Tenure.DELETED or not slot.ready:
                continue
            indexes = slot.ready_indexes()
            if slot.end > end:
                count = bisect_left(indexes, end - slot.first)
                indexes = indexes[:count]
            self.lose(slot, indexes)
            yield len(indexes)

    def log_settlements(self) -> None:
        """Log the settlements of this loop turn: each long run in a record of its own, all others in one."""
        pending, self._pending = self._pending, []
        if not pending or self.deleted:
            return
        now_ms = self._ports.clock.now_ms
        if len(pending) > 1:
            for ids in pending:
                if len(ids) >= RUN_MIN and isinstance(ids, range):
                    self._recorder.record_settled(now_ms, self.number, ids)
            pending = [ids for ids in pending if len(ids) < RUN_MIN or not isinstance(ids, range)]
        if pending:
            ids = pending[0] if len(pending) == 1 else list(chain.from_iterable(pending))
            self._recorder.record_settled(now_ms, self.number, ids)

    def delete(self) -> None:
        self.deleted = True
        self._release_all()
        self.manager.ignore_slots()  # break the reference cycle with the manager
        self._pending.clear()
        if self.durable:
            self._recorder.record_deleted(self._ports.clock.now_ms, self.number)
        self._ports.store.forget_queue(self.number, at_once=not self.durable, recorded=self.durable)

    def _release_all(self) -> None:
        """Delete all slots now; the memory of their messages is freed over several turns."""
        self.returning.clear()
        contents = self.manager.clear()
        if contents:
            self._ports.sliced.run(_release(contents))

    # -- sizes --------------------------------------------------------------------------------------------------------

    def limit_bytes(self, *, limited: bool) -> None:
        """Count the bytes of ready messages if the queue is limited in bytes, otherwise stop counting them."""
        counting = self.manager.sizes is not None
        if limited and not counting:
            self._count_sizes()
        elif counting and not limited:
            self.manager.count_no_sizes()

    def _count_sizes(self) -> None:
        """Count the bytes of ready messages; those on disk are added when they have been measured."""
        for slot in self.manager.count_sizes(Message.body_bytes):
            self._ports.measure(self, slot)

    def _note_settled(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Collect the messages that have a record, so that their settlement is logged by the end of the loop turn."""
        logged = self._logged_of(slot, indexes)
        first = slot.first
        if not logged:
            return
        if isinstance(logged, range):
            self._note_ids(range(first + logged.start, first + logged.stop))
        else:
            self._note_ids([first + index for index in logged])

    def _note_ids(self, ids: Sequence[int]) -> None:
        """Collect the ids of settled messages; adjacent ranges are merged."""
        pending = self._pending
        if not pending:
            self._ports.settled.append(self)
        elif isinstance(ids, range):
            last = pending[-1]
            if isinstance(last, range) and last.stop == ids.start:
                pending[-1] = range(last.start, ids.stop)
                return
        pending.append(ids)

    @staticmethod
    def _logged_of(slot: Slot, indexes: Sequence[int]) -> Sequence[int]:
        """Return the messages that have a record in the log.

        The id of any other message may be reused after a crash, so the log must not contain it.
        """
        if not slot.mixed:
            return indexes
        if not slot.segments:
            return ()
        contents = slot.contents
        logged = []
        for index in indexes:
            message: Message | None = None if contents is None else contents[index]
            if (not slot.is_volatile(index)) if message is None else message.logged:
                logged.append(index)
        return logged

    def _slot_opened(self, slot: Slot) -> None:
        self._ports.opened(self, slot)

    def _slot_deleted(self, slot: Slot) -> None:
        store = self._ports.store
        for segment in slot.segments:
            (store.spill if segment >= SPILLED_SEGMENT else store.log).drop_live(segment, 1)
        if slot.logged and not self.deleted:  # the entries of a deleted level are dropped together
            store.drop_entries(self.number, slot.first, slot.end, at_once=not self.durable)


def missing_among(contents: Sequence[Message | None], indexes: Sequence[int]) -> list[int]:
    """Return the indexes of messages that are missing from the contents of a slot in memory."""
    if isinstance(indexes, range) and None not in contents[indexes.start : indexes.stop]:
        return []  # the usual case
    return [index for index in indexes if contents[index] is None]


def _release(contents: list[list[Message | None]]) -> Iterator[int]:
    """Release messages slot by slot, and yield the cost in units of the turn's share."""
    while contents:
        yield 1 + len(contents.pop()) // MESSAGES_PER_UNIT
