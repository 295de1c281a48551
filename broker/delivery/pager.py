"""The pager: keep the messages in memory within a budget by moving slots to disk.

A slot that is paged out keeps only its range of ids in memory. Slots farthest from the head of their queue are paged
out first, except slots from which a worker is delivering. Durable queues without consumers keep little in memory,
because they only grow, and the next checkpoint writes their entries anyway. Paging out a logged message writes only its
queue-log entry; a transient message is written to the spill.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Final

from broker.core.deadlines import Clock
from broker.core.message.delay import HeldMessage, due_ms_of
from broker.core.message.message import Message
from broker.core.publish_credit import SHARE_ENTRIES
from broker.core.queue.level import Level
from broker.slots.redeliveries import spans
from broker.slots.slot import Slot
from broker.slots.states import Fill, Tenure
from broker.store.queue_entry import Entries
from broker.store.record import TARGET, due_target, encode_message
from broker.store.segment import OFFSET_BITS, SPILLED
from broker.store.store import VhostStore

# Costs are in messages that have a log record.
TURN_MESSAGES: Final = SHARE_ENTRIES  # the cost paged out in a turn: as much as publishers may add to a vhost in it
LEAVING_TURNS: Final = 128  # turns in which the waiting slots of idle queues are paged out, at least one slot per turn
# The garbage collector would visit each message of a list (10 ms for 200,000), although no message is in a cycle.
untrack: Final = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))
UNTRACKED_MIN: Final = 100  # a sealed slot with this many messages is hidden from the garbage collector
SLOT_COST: Final = 1000  # the least cost of a slot for which a file is opened
BUFFERED_COST: Final = 30  # the least cost of a slot whose entries are written into a buffer
SPILL_COST: Final = 8  # the cost of a message without a record, which must be encoded and written
SPILL_BYTES: Final = 128  # this many bytes of a slot that is spilled cost 1, so a turn writes a mebibyte
RELIEF: Final = 0.75  # paging stops when this share of the budget is in use
IDLE_SHARE: Final = 0.125  # the share of the budget for queues without consumers
CHECKS_MIN: Final = 2000  # slots checked per tick at least, which takes about a millisecond
CHECKS_DIVISOR: Final = 10  # each tick checks at least a tenth of the slots, so each slot is checked once a second


class _Resident:
    """A slot in memory. Units: ``counted_bytes`` is its charge at the last check, ``idle_bytes`` its part of the idle
    queues' charge.
    """

    __slots__ = ("counted_bytes", "idle_bytes", "level", "since_ms", "slot")

    def __init__(self, level: Level, slot: Slot, since_ms: int) -> None:
        self.level = level
        self.slot = slot
        self.since_ms = since_ms
        self.counted_bytes = 0
        self.idle_bytes = 0

    def count(self, counted_bytes: int) -> int:
        """Record the charge of the slot, and return how much it has grown since the last check."""
        more, self.counted_bytes = counted_bytes - self.counted_bytes, counted_bytes
        return more

    def count_idle(self) -> int:
        """Count the slot towards the idle queues' charge, and return its charge."""
        self.idle_bytes = self.counted_bytes
        return self.idle_bytes

    def clear(self) -> None:
        self.counted_bytes = self.idle_bytes = 0


class Pager:
    """The pager of one vhost.

    Units: `budget_bytes` and `resident_bytes` are memory charges of messages; an open slot is sealed when it is
        `window_ms` old. `paged_out` counts slots, `spilled` counts messages that were written to the spill.
    Invariant: a durable queue's message whose record is not yet written to the log file is never paged out.
    """

    def __init__(self, store: VhostStore, budget_bytes: int, window_ms: int, clock: Clock) -> None:
        self._store = store
        self._window_ms = window_ms
        self._clock = clock
        self.budget_bytes = budget_bytes
        self.resident_bytes = 0
        self.pressed = False
        self.paged_out = 0
        self.spilled = 0
        self._resident: dict[Slot, _Resident] = {}
        self._round: list[_Resident] = []  # slots to be checked, beginning at the end
        self._checks = CHECKS_MIN  # slots to be checked per tick in this round
        self._young: list[_Resident] = []  # new since the last tick
        self._newest: dict[Level, _Resident] = {}  # the open slot of each level, or the slot that was open last
        self._idle_bytes = 0
        self._leaving: deque[_Resident] = deque()  # slots of idle queues, paged out once their records are written
        self._candidates: list[_Resident] = []  # slots to be paged out while over budget, beginning at the end

    def set_budget(self, budget_bytes: int) -> None:
        """Set the memory budget."""
        self.budget_bytes = budget_bytes

    def opened(self, level: Level, slot: Slot) -> None:
        """Add a slot whose messages are in memory from now on."""
        known = self._resident.get(slot)
        young = self._resident[slot] = _Resident(level, slot, self._clock.now_ms)
        if known is not None:  # it was paged out and read back between two checks
            self._uncount(known)
        self._young.append(young)
        if slot.fill is Fill.OPEN:
            before = self._newest.get(level)
            self._newest[level] = young
            if before is not None and before.slot in self._resident:
                self._sealed(before)

    def end(self) -> None:
        """Forget every slot, because the vhost is deleted."""
        self._resident.clear()
        self._newest.clear()
        self._leaving.clear()
        self._round, self._young, self._candidates = [], [], []

    def tick(self) -> None:
        """Recount the resident slots, seal old ones, and decide whether to page out; called ten times a second.

        Cost: 2,000 or a tenth of the resident slots, and new ones; a list of all per round; a sort when paging begins.
        """
        old_ms = self._clock.now_ms - self._window_ms
        if not self._round:
            self._round = list(self._resident.values())
            self._checks = max(CHECKS_MIN, -(-len(self._round) // CHECKS_DIVISOR))
        checks = self._checks
        aged: list[_Resident] = []
        for resident in self._round[-checks:]:
            self._recount(resident)
            slot = resident.slot
            if slot.fill is Fill.OPEN and resident.since_ms < old_ms and slot.contents is not None:
                aged.append(resident)
        del self._round[-checks:]
        for resident in self._young:
            self._recount(resident)
        self._young = []
        for resident in aged:
            if resident.slot.tenure is not Tenure.DELETED:
                resident.level.manager.seal()
                self._sealed(resident)
        over = self.resident_bytes > self.budget_bytes
        if over and not self._candidates:
            self._candidates = self._rank()
        elif self.resident_bytes <= self.budget_bytes * RELIEF:
            self._candidates = []  # they may be deleted by now
        self.pressed = over or self._may_leave()

    def turn(self) -> bool:
        """Page out a few slots, and return whether any was paged out: then the next turn should read less input.

        Slots of idle queues come first, then those farthest from the head of their queue. Above the memory budget, page
        out as many messages as publishers may add in a turn. Otherwise page out a part of the waiting slots of idle
        queues, because a written batch of the log may release a hundred slots at once.
        """
        paged_out = self.paged_out
        budget = TURN_MESSAGES
        if not self._candidates:
            budget = min(budget, max(SLOT_COST, len(self._leaving) * SLOT_COST // LEAVING_TURNS))
        while budget > 0:
            if self._may_leave():
                resident = self._leaving.popleft()
                if not self._is_idle(resident.level):
                    continue
            elif self._candidates and self.resident_bytes > self.budget_bytes * RELIEF:
                resident = self._candidates.pop()
            else:
                self.pressed = False
                self._candidates = []
                break
            budget -= 1 + self._page_out(resident)
        return self.paged_out > paged_out

    def _page_out(self, resident: _Resident) -> int:
        """Page out a slot, unless it is in use, and return the cost."""
        slot, level = resident.slot, resident.level
        if slot.contents is None or slot.tenure is Tenure.DELETED or level.deleted or self._in_service(slot):
            return 0
        if slot.fill is Fill.OPEN:
            level.manager.seal()
        if not slot.unsettled:
            return 0
        spilled, written = self.spilled, self._store.queues.written
        if self.log_entries(level, slot):
            bodies = [len(message.body) for message in slot.contents if message is not None]
            slot.page_out(sum(bodies) * slot.length // slot.unsettled)
            self.paged_out += 1
            self._recount(resident)
        cost = max(SLOT_COST if self._store.queues.written > written else BUFFERED_COST, slot.length)
        if self.spilled == spilled:
            return cost
        return max(cost + (self.spilled - spilled) * (SPILL_COST - 1), slot.bytes // SPILL_BYTES)

    # -- what is in memory --------------------------------------------------------------------------------------------

    def _recount(self, resident: _Resident) -> None:
        """Recount a slot, and remove it if it is no longer in memory."""
        slot = resident.slot
        current = self._resident.get(slot) is resident
        if not current or slot.contents is None or slot.tenure is Tenure.DELETED:
            if current:
                del self._resident[slot]
            if self._newest.get(resident.level) is resident:
                del self._newest[resident.level]
            self._uncount(resident)
            return
        counted_bytes = slot.bytes * (slot.length - slot.acks.count) // slot.length
        self.resident_bytes += resident.count(counted_bytes)

    def _uncount(self, resident: _Resident) -> None:
        self.resident_bytes -= resident.counted_bytes
        self._idle_bytes -= resident.idle_bytes
        resident.clear()

    def _sealed(self, resident: _Resident) -> None:
        """Hide a large sealed slot from the garbage collector. Decide once if an idle queue's slot stays in memory."""
        contents = resident.slot.contents
        if contents is not None and len(contents) >= UNTRACKED_MIN:
            untrack(contents)
        self._recount(resident)
        if (
            resident.idle_bytes
            or not resident.counted_bytes
            or not self._is_idle(resident.level)
            or not self._is_logged(resident.slot)
        ):
            return
        if self._idle_bytes + resident.counted_bytes <= self.budget_bytes * IDLE_SHARE:
            self._idle_bytes += resident.count_idle()
        else:
            self._leaving.append(resident)
            if self._may_leave():
                self.pressed = True

    @staticmethod
    def _is_idle(level: Level) -> bool:
        """Return whether a durable level only grows: it has no consumers, and no slot writer, which only taps have."""
        queue = level.queue
        return level.durable and not (queue.consumers.present or queue.is_tap)

    @staticmethod
    def _is_logged(slot: Slot) -> bool:
        """Return whether the newest message of a slot has a record in the log, so that paging it out is cheap."""
        message: Message | None = slot.contents[-1] if slot.contents else None
        return message is not None and message.logged

    def _may_leave(self) -> bool:
        """Return whether the first slot in ``_leaving`` can be paged out: its records are in the log file."""
        leaving = self._leaving
        if not leaving:
            return False
        contents = leaving[0].slot.contents
        return contents is None or not self._unwritten(contents)

    # -- on disk ------------------------------------------------------------------------------------------------------

    def log_entries(self, level: Level, slot: Slot, *, for_checkpoint: bool = False) -> bool:
        """Write the missing queue-log entries of a resident slot, and spill the messages without a record.

        Return False, having written nothing, if a record of the slot is not in the log file yet. A checkpoint does not
        wait for that, because it syncs the records itself, and spills nothing, because it omits transient messages.
        Invariant: an entry that a checkpoint may rely on is never written again.
        """
        if slot.contents is None:
            return True
        if not for_checkpoint and level.durable and self._unwritten(slot.contents):
            return False
        start = slot.logged
        if start < slot.length:
            entries = self._entries(level, slot, start)
            self._write(level, slot, start, entries)
            slot.note_logged()
        if not for_checkpoint and slot.unlogged:
            self._spill(level, slot)
        return True

    def _entries(self, level: Level, slot: Slot, start: int) -> Entries:
        """Return the entries from an index on, and note in the slot which messages have no record on disk."""
        assert slot.contents is not None
        contents: list[Message | None] = slot.contents[start:] if start else slot.contents
        positions = [message.position for message in contents if message is not None]
        if level.durable and len(positions) == len(contents) and min(positions) > 0 and max(positions) < SPILLED:
            # The usual case: all messages have records in the log.
            return positions, [message.record_bytes for message in contents if message is not None]
        positions, sizes = [0] * len(contents), [0] * len(contents)
        for place, message in enumerate(contents):
            if message is not None:
                if self._may_refer(level, message.position):
                    positions[place], sizes[place] = message.position, message.record_bytes
                else:
                    slot.note_unlogged(start + place)
        return positions, sizes

    def _unwritten(self, contents: list[Message | None]) -> bool:
        """Return whether a record of a durable queue's slot is not in the log file yet.

        Records are in the order of their ids, and relocated ones are on disk, so the last record decides.
        """
        for message in reversed(contents):
            if message is not None and message.logged:
                return message.position >= self._store.log.written
        return False

    def _write(self, level: Level, slot: Slot, start: int, entries: Entries) -> None:
        positions = entries[0]
        if max(positions) >= SPILLED:
            for segment in {position >> OFFSET_BITS for position in positions if position >= SPILLED}:
                if slot.add_segment(segment):
                    self._store.add_live(segment, 1)
            if level.durable:
                for index, position in enumerate(positions, start):
                    if position >= SPILLED:
                        slot.mark_volatile(index)
        due_ms: list[int] = []
        if level.is_holding:
            assert slot.contents is not None
            due_ms = [due_ms_of(message) for message in slot.contents[start : start + len(positions)]]
        self._store.queues.write(level.number, slot.first + start, entries, due_ms, durable=level.durable)

    def _may_refer(self, level: Level, position: int) -> bool:
        """Return whether the slots of a level may refer to a record at this position.

        The slots of a durable queue pin their log segments. Slots of other queues do not, so they may refer only to
        records in the spill, and only in segments that a slot pins.
        """
        if position < SPILLED:
            return level.durable and position > 0
        return position >> 32 in self._store.spill.live

    def _spill(self, level: Level, slot: Slot) -> None:
        """Write the messages that exist only in memory to the spill, in one call, and then their entries."""
        assert slot.contents is not None
        contents: list[Message | None] = slot.contents
        unlogged = dict.fromkeys(slot.unlogged)  # after a failed write an index may be listed twice
        messages = [(index, message) for index in unlogged if (message := contents[index]) is not None]
        number, first = level.number, slot.first
        records = [
            encode_message(
                0,
                message.timestamp_ms,
                0,
                message.envelope.route,
                message.header,
                message.body,
                (due_target(message.due_ms) if isinstance(message, HeldMessage) else b"")
                + TARGET.pack(number, first + index),
            )
            for index, message in messages
        ]
        positions = self._store.spill.extend(records)
        for (_, message), position, record in zip(messages, positions, records, strict=True):
            if not 0 < message.position < SPILLED:  # other transient queues with the message may refer to the record
                message.recorded(position, len(record))
        self.spilled += len(messages)
        place = 0
        for start, end in spans([index for index, _ in messages]):
            stop = place + end - start
            self._write(level, slot, start, (positions[place:stop], list(map(len, records[place:stop]))))
            place = stop
        slot.note_spilled()  # not earlier: if a write fails, the messages have no entries

    def _rank(self) -> list[_Resident]:
        """Return the slots that may be paged out, the farthest from the head of its queue last."""
        heads: dict[Level, int] = {}
        ranked: list[tuple[int, int, int, _Resident]] = []
        for place, resident in enumerate(self._resident.values()):
            slot, level = resident.slot, resident.level
            if not level.deleted and not self._in_service(slot):
                head = heads.get(level)
                if head is None:
                    head = heads[level] = next(iter(level.manager.slots))
                ranked.append((slot.first - head, slot.first, place, resident))
        ranked.sort()
        return [resident for _distance, _first, _place, resident in ranked]

    @staticmethod
    def _in_service(slot: Slot) -> bool:
        """Return whether a worker is delivering from this slot."""
        return slot.owner is not None and slot.ready > 0
