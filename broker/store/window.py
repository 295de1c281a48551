"""Windows: the slots of a queue while recovery replays the log: their ids, settled bits and segments."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bitarray import bitarray
from bitarray.util import zeros

from broker.slots.redeliveries import Redeliveries, ReturnRun
from broker.store.checkpoint import QueueState, SlotState
from broker.store.queue_entry import Entries
from broker.store.queue_log import QueueLogs
from broker.store.segment import OFFSET_BITS, OFFSET_MASK
from broker.store.spill import is_spilled

_NOT_OPEN: Final = -1


class Window:
    """A slot that recovery builds.

    Shapes: ``bits[i]`` is set if message ``first + i`` is settled. While the window is open it has more bits than
        messages and ``end`` is not known yet.
    """

    def __init__(self, first: int, bits: bitarray) -> None:
        self.first = first
        self.end = first + len(bits)
        self.bits = bits
        self._returns: Redeliveries | None = None
        self.segments: dict[int, int] = {}
        self.size_bytes = 0
        self.redelivered = False
        self.doubtful = False  # ``segments`` may be out of date, and must be recounted from the entries

    @classmethod
    def of(cls, slot: SlotState) -> Window:
        length = slot.end - slot.first
        bits = bitarray(endian="little")
        bits.frombytes(slot.settled)
        del bits[length:]
        bits.extend(zeros(length - len(bits)))
        window = cls(slot.first, bits)
        for run in slot.returns:
            window.note_returns(run)
        window.segments = dict(slot.segments)
        window.size_bytes = slot.size_bytes
        window.redelivered = slot.redelivered
        window.doubtful = any(is_spilled(segment) for segment in slot.segments)
        return window

    def state(self) -> SlotState:
        returns: list[ReturnRun] = []
        if self._returns is not None:
            returns = self._returns.runs(list(self.bits.search(bitarray("0"))))
        settled = self.bits.tobytes()
        return SlotState(self.first, self.end, settled, returns, self.segments, self.size_bytes, self.redelivered)

    def note_returns(self, run: ReturnRun) -> None:
        if self._returns is None:
            self._returns = Redeliveries()
        self._returns.put(run)

    def cut(self, length: int) -> None:
        """End the window after this many messages."""
        del self.bits[length:]
        self.end = self.first + length

    def count(self, entries: Entries) -> None:
        """Count the window's messages by segment and add up their bytes; `entries` are those of all its messages."""
        positions, sizes = entries
        segment = positions[0] >> OFFSET_BITS
        if segment == positions[-1] >> OFFSET_BITS:
            self.segments = {segment: len(positions)}
        else:
            self.segments = dict(Counter(position >> OFFSET_BITS for position in positions if position))
        self.size_bytes = sum(sizes)

    def note_move(self) -> None:
        """Mark the counts by segment as doubtful, because the record of a message was moved."""
        self.doubtful = True

    def count_segment(self) -> None:
        """Count the unsettled messages, if all records are in one segment; otherwise settled ones stay counted."""
        if len(self.segments) == 1:
            self.segments = dict.fromkeys(self.segments, self.bits.count(0))

    def recount(self, entries: Entries, segments: Mapping[int, int]) -> list[int]:
        """Count the unsettled messages by segment from their entries; return the indexes of those without a record.

        Shapes: `segments` maps each log segment to its bytes. The spill is lost, so spilled messages have no record.
        """
        lost = []
        positions, sizes = entries
        counted: Counter[int] = Counter()
        for index in self.bits.search(bitarray("0")):
            position, size = positions[index], sizes[index]
            segment = position >> OFFSET_BITS
            if size and (position & OFFSET_MASK) + size <= segments.get(segment, 0):
                counted[segment] += 1
            else:
                lost.append(index)
        self.segments = dict(counted)
        return lost


class QueueReplay:
    """A durable queue while the log is replayed.

    Shapes: ``expected`` is the id that follows the open window, or -1 if no window is open.
    Invariant: windows ascend and do not overlap; ``firsts`` are their first ids.
    """

    def __init__(self, state: QueueState, logs: QueueLogs, window_messages: int, window_bytes: int) -> None:
        self._logs = logs
        self._window_messages = window_messages
        self._window_bytes = window_bytes
        self.number = state.number
        self.next_id = state.next_id
        self.windows = [Window.of(slot) for slot in state.slots]
        self.firsts = [window.first for window in self.windows]
        self.positions: list[int] = []  # of the records of the open window
        self.sizes: list[int] = []  # their lengths
        self.due_ms: dict[int, int] = {}  # when messages of the open window, or the next message, are due, by id
        self.expected = _NOT_OPEN
        self.full = 0  # the id at which the open window is full
        self.left_bytes = 0  # until the open window is full

    def follow(self, position: int, size: int) -> None:
        """Add the next message to the open window."""
        self.positions.append(position)
        self.sizes.append(size)
        self.next_id = self.expected = expected = self.expected + 1
        self.left_bytes -= size
        if self.left_bytes <= 0 or expected == self.full:
            self.seal()

    def accept(self, message_id: int, position: int, size: int) -> None:
        """Add a message that does not continue the open window. A known message changes nothing."""
        next_id = self.next_id
        if message_id < next_id:
            return
        if self.expected != _NOT_OPEN and message_id >= self.full:
            self.seal()
        if self.expected == _NOT_OPEN:
            self._open(message_id)
        else:
            # The ids in between belonged to transient messages, which count as settled.
            gap = message_id - next_id
            place = len(self.positions)
            self.windows[-1].bits[place : place + gap] = 1
            self.positions.extend([0] * gap)
            self.sizes.extend([0] * gap)
        self.positions.append(position)
        self.sizes.append(size)
        self.next_id = self.expected = message_id + 1
        self.left_bytes -= size
        if self.expected == self.full or self.left_bytes <= 0:
            self.seal()

    def settle(self, ids: Iterable[int]) -> None:
        """Mark messages settled; skip ids of deleted slots, and ids without a record."""
        firsts, windows = self.firsts, self.windows
        for message_id in ids:
            if message_id >= self.next_id:
                continue  # records precede their settlement: this message was transient, and its id may be used again
            place = bisect_right(firsts, message_id) - 1
            if place >= 0:
                window = windows[place]
                index = message_id - window.first
                if index < len(window.bits):
                    window.bits[index] = 1

    def settle_run(self, first: int, end: int) -> None:
        """Mark the messages first <= id < end settled; skip ids that are in no window."""
        end = min(end, self.next_id)
        for window, start, stop in self._overlapping(first, end):
            window.bits[start:stop] = 1

    def requeue(self, first: int, end: int, acquired: int, delivered: int) -> None:
        """Record how often the messages first <= id < end were returned; skip ids that are in no window."""
        for window, start, stop in self._overlapping(first, min(end, self.next_id)):
            window.note_returns(ReturnRun(start, stop, acquired, delivered))

    def move(self, message_id: int, position: int, size: int, due_ms: int) -> None:
        """Write the new position of a message's record, which was copied within the log, to the queue log."""
        if self.expected != _NOT_OPEN and message_id >= self.firsts[-1]:
            self.seal()
        window = self.window_of(message_id)
        if window is not None:
            self._logs.write(self.number, message_id, ([position], [size]), (due_ms,))
            window.note_move()

    def seal(self) -> None:
        """End the open window and write its entries to the queue log; drop it if all its messages are settled."""
        if self.expected == _NOT_OPEN:
            return
        window, entries = self.windows[-1], (self.positions, self.sizes)
        window.cut(len(self.positions))
        self.positions, self.sizes = [], []
        self.expected = _NOT_OPEN
        due_ms: list[int] = []
        if self.due_ms:  # it may have the message of the next window already
            due_ms = [self.due_ms.pop(message_id, 0) for message_id in range(window.first, window.end)]
        if window.bits.all():
            self.windows.pop()
            self.firsts.pop()
            return
        self._logs.write(self.number, window.first, entries, due_ms)
        window.count(entries)

    def finish(self) -> None:
        """End the open window, and drop the windows without unsettled messages."""
        self.seal()
        self.windows = [window for window in self.windows if not window.bits.all()]
        self.firsts = [window.first for window in self.windows]
        for window in self.windows:
            window.count_segment()

    def state(self) -> QueueState:
        """Return the recovered queue, without slots whose messages are all settled."""
        slots = [window.state() for window in self.windows if not window.bits.all()]
        return QueueState(self.number, self.next_id, slots)

    def window_of(self, message_id: int) -> Window | None:
        """Return the window of an unsettled message, or None for any other id."""
        place = bisect_right(self.firsts, message_id) - 1
        if place < 0 or message_id >= self.next_id:
            return None
        window = self.windows[place]
        index = message_id - window.first
        return window if index < len(window.bits) and not window.bits[index] else None

    def _open(self, first: int) -> None:
        self.windows.append(Window(first, zeros(self._window_messages, endian="little")))
        self.firsts.append(first)
        self.full = first + self._window_messages
        self.left_bytes = self._window_bytes

    def _overlapping(self, first: int, end: int) -> Iterator[tuple[Window, int, int]]:
        """Yield each window with messages first <= id < end, and the range of their indexes: start and stop."""
        place = max(bisect_right(self.firsts, first) - 1, 0)
        after = bisect_left(self.firsts, end)
        for window in self.windows[place:after]:
            start = max(first - window.first, 0)
            stop = min(end - window.first, len(window.bits))
            if start < stop:
                yield window, start, stop
