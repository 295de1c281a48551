"""The pager: keeps the messages in memory within a budget by moving slots to disk.

A sealed slot that nobody is being served from keeps only its range in memory; what is farthest from its queue's head
goes first. A record that was logged is not written again, only its queue-log entry; a transient message goes to the
spill.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.slots.slot import Fill, Tenure
from broker.store.queue_log import Entry
from broker.store.record import TARGET, encode_message
from broker.store.spill import SPILLED

if TYPE_CHECKING:
    from broker.core.message import Message
    from broker.core.queue import Clock
    from broker.core.stream import Stream
    from broker.slots.slot import Slot
    from broker.store.store import VhostStore

__all__ = ["Pager"]

TURN_SLOTS: Final = 8  # a slot of 1,000 costs under a millisecond: what one loop turn may spend on paging
RELIEF: Final = 0.75  # paging goes on until this share of the budget is left


class Pager:
    """Counts what is resident and pages out what exceeds the budget.

    Units: ``budget_bytes`` and ``resident_bytes`` are memory charges of messages; an open slot is sealed when it is
        ``window_ms`` old.
    Invariant: a message whose record is not yet written to the log file is never paged out.
    """

    def __init__(self, store: VhostStore, budget_bytes: int, window_ms: int, clock: Clock) -> None:
        self._store = store
        self._window_ms = window_ms
        self._clock = clock
        self.budget_bytes = budget_bytes
        self.resident_bytes = 0
        self.pressed = False
        self.paged_out = 0
        self._resident: dict[Slot, tuple[Stream, int]] = {}
        self._candidates: list[tuple[int, Slot, Stream]] = []

    def kept(self, stream: Stream, slot: Slot) -> None:
        """Hears that a slot begins to hold messages in memory."""
        self._resident[slot] = (stream, self._clock.now_ms)

    def tick(self) -> None:
        """Recounts what is resident, seals old slots, and decides whether there is pressure.

        Cost: n resident slots; called ten times a second.
        """
        total = 0
        old_ms = self._clock.now_ms - self._window_ms
        gone = []
        aged = []
        for slot, (stream, since_ms) in self._resident.items():
            if slot.contents is None or slot.tenure is Tenure.DELETED:
                gone.append(slot)
                continue
            if slot.fill is Fill.OPEN and since_ms < old_ms:
                aged.append(stream)
            total += slot.bytes * slot.unsettled // slot.length
        for slot in gone:
            del self._resident[slot]
        for stream in aged:
            stream.manager.seal()
        self.resident_bytes = total
        self.pressed = total > self.budget_bytes
        if self.pressed:
            self._candidates = self._rank()

    def turn(self) -> None:
        """Pages out a few slots, farthest from the head of their queue first."""
        for _ in range(TURN_SLOTS):
            if not self._candidates or self.resident_bytes <= self.budget_bytes * RELIEF:
                self.pressed = False
                self._candidates.clear()
                return
            _distance, slot, stream = self._candidates.pop()
            if slot.contents is None or slot.tenure is Tenure.DELETED or stream.deleted or self._in_service(slot):
                continue
            if slot.fill is Fill.OPEN:
                stream.manager.seal()
            if not slot.unsettled or not self.log_entries(stream, slot):
                continue
            self.resident_bytes -= slot.bytes * slot.unsettled // slot.length
            slot.contents = None
            self.paged_out += 1
            self._resident.pop(slot, None)

    def log_entries(self, stream: Stream, slot: Slot, *, for_checkpoint: bool = False) -> bool:
        """Writes the queue-log entries that a resident slot still lacks, and spills what has no record to point to.

        Tells False, and writes nothing, when a record of it is not in the log file yet. A checkpoint has it written
        before anybody relies on the entries, and spills nothing: a transient message is none of its business.
        Invariant: an entry that a checkpoint may rely on is never written again.
        """
        if slot.contents is None:
            return True
        if not for_checkpoint and stream.durable and self._unwritten(slot.contents):
            return False
        start = slot.logged
        entries: list[Entry | None] = []
        unlogged: list[int] = []
        for index in range(start, slot.length):
            message: Message | None = slot.contents[index]
            entry = None if message is None else message.entry
            if message is not None and not self._serves(entry, stream):
                entry = None
                unlogged.append(index)
            entries.append(entry)
        if entries:
            self._write(stream, slot, start, entries)
            slot.logged = slot.length
            slot.unlogged += unlogged
        if not for_checkpoint and slot.unlogged:
            self._spill(stream, slot)
        return True

    def _unwritten(self, contents: list[Message | None]) -> bool:
        """Tells whether the log file lacks a record of a durable queue's slot, whoever wrote its entry already.

        Records lie in the order of their ids, and those that were relocated are on disk: the last one tells.
        """
        for message in reversed(contents):
            if message is not None and message.entry is not None and message.entry[0] < SPILLED:
                return message.entry[0] >= self._store.log.written
        return False

    def _write(self, stream: Stream, slot: Slot, start: int, entries: list[Entry | None]) -> None:
        for index, entry in enumerate(entries, start):
            if entry is not None and entry[0] >= SPILLED:
                stream.refer(slot, entry[0] >> 32)
                if stream.durable:
                    slot.mark_volatile(index)
        self._store.page_out(stream.number, slot.first + start, entries)

    def _serves(self, entry: Entry | None, stream: Stream) -> bool:
        """Tells whether a record that a message has already is one that this queue's slots may point to.

        A durable queue's slots keep the log segments they need on disk; for any other queue the log may be reclaimed,
        so it needs the spill, and there only what some slot still keeps.
        """
        if entry is None:
            return False
        if entry[0] < SPILLED:
            return stream.durable
        return entry[0] >> 32 in self._store.spill.live

    def _spill(self, stream: Stream, slot: Slot) -> None:
        """Writes what is still in memory alone to the spill, with one call, and then its entries."""
        assert slot.contents is not None
        indexes = [index for index in slot.unlogged if slot.contents[index] is not None]
        messages: list[Message] = [slot.contents[index] for index in indexes]
        records = [
            encode_message(
                0,
                message.timestamp_ms,
                0,
                message.envelope.route,
                message.header,
                message.body,
                TARGET.pack(stream.number, slot.first + index),
            )
            for index, message in zip(indexes, messages, strict=True)
        ]
        entries: dict[int, Entry] = {}
        positions = self._store.spill.extend(records)
        for index, message, record, position in zip(indexes, messages, records, positions, strict=True):
            entries[index] = (position, len(record))
            if message.entry is None or message.entry[0] >= SPILLED:
                message.entry = entries[index]  # other transient queues that hold it may point there too
        for run in _runs(indexes):
            self._write(stream, slot, run.start, [entries[index] for index in run])
        slot.unlogged = []  # not before: were the spill to fail, they still have no place on disk

    def _rank(self) -> list[tuple[int, Slot, Stream]]:
        """Lists what may be paged out; the last one goes first."""
        ranked = []
        for slot, (stream, _since) in self._resident.items():
            if not stream.deleted and not self._in_service(slot):
                head = next(iter(stream.manager.slots))
                ranked.append((slot.first - head, slot.first, slot, stream))
        ranked.sort(key=lambda entry: entry[:2])
        return [(distance, slot, stream) for distance, _first, slot, stream in ranked]

    @staticmethod
    def _in_service(slot: Slot) -> bool:
        """Whether a worker is handing out this slot's messages."""
        return slot.lease is not None and slot.ready > 0


def _runs(indexes: list[int]) -> Iterator[range]:
    """Yields the runs of neighbours in ascending indexes."""
    if not indexes:
        return
    start = previous = indexes[0]
    for index in indexes[1:]:
        if index != previous + 1:
            yield range(start, previous + 1)
            start = index
        previous = index
    yield range(start, previous + 1)
