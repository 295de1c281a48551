"""An index of the moments at which the messages of a holding level are due. It contains messages that are due soon, and
the next moment of each slot, so that its memory grows with the number of slots rather than of messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final

from broker.slots.slot import Slot
from broker.slots.states import Fill

Moment = tuple[int, int]  # when a message is due, in ms, and its id: messages are released in this order

NEAR_MAX: Final = 65_536  # about this many messages of sealed slots are indexed, at about 150 bytes each
NEAR_MIN_SLOT: Final = 4  # at least this many messages of a sealed slot are indexed at a time
AHEAD_MS: Final = 1000  # messages of an open slot are indexed if they are due within this time
_NONE: Final[Moment] = (-1, -1)
_BEYOND: Final = 1 << 63  # above every message id


class SlotMoments:
    """The moments of one slot. Invariant: each ready message up to ``horizon`` was indexed. ``next`` is the first
    moment after the horizon, perhaps that of a message that has been removed, or None if there is none.
    """

    __slots__ = ("horizon", "next", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.horizon = _NONE
        self.next: Moment | None = None

    def advance(self, moments: Iterable[Moment], now_ms: int, share: int) -> list[Moment]:
        """Advance the horizon and return the moments that it passes. In an open slot, to which messages will be added,
        it advances to AHEAD_MS after `now_ms`; in a sealed slot it passes at most `share` moments.
        Shapes: `moments` are those of the slot's ready messages.
        """
        horizon = self.horizon
        beyond = [moment for moment in moments if moment > horizon]
        if self.slot.fill is Fill.OPEN:
            self.horizon = (now_ms + AHEAD_MS, _BEYOND)
            chosen = [moment for moment in beyond if moment <= self.horizon]
            self.next = min([moment for moment in beyond if moment > self.horizon], default=None)
        else:
            chosen = nsmallest(share + 1, beyond)
            self.next = chosen.pop() if len(chosen) > share else None
            self.horizon = chosen[-1] if chosen else horizon
        return chosen

    def expect(self, moment: Moment) -> None:
        """Set the first moment after the horizon."""
        self.next = moment


class DueMoments:
    """The moments of one holding level.

    Invariant: every ready message that has not been taken is indexed, or is not due before its slot's ``next``. A
        removed message may remain in the index until it would be due.
    Cost: O(log n) amortised to add and to take, for n slots and indexed messages; O(m log m) to index the next messages
        of a slot of m messages, which is rare.
    """

    def __init__(self) -> None:
        self._by_first: dict[int, SlotMoments] = {}
        self._near: list[tuple[int, int, Slot]] = []  # a heap
        self._slots: list[tuple[int, int, SlotMoments]] = []  # a heap of each slot's `next`, and of outdated values

    @property
    def next_ms(self) -> int | None:
        first = self._first_slot()
        if self._near and (first is None or self._near[0][0] < first[0]):
            return self._near[0][0]
        return None if first is None else first[0]

    def add(self, slot: Slot, message_id: int, due_ms: int) -> None:
        """Add a message that was just appended to a slot."""
        known = self._by_first.get(slot.first)
        if known is None:
            known = self._by_first[slot.first] = SlotMoments(slot)
        moment = (due_ms, message_id)
        if moment <= known.horizon:
            heappush(self._near, (due_ms, message_id, slot))
        elif known.next is None or moment < known.next:
            self._set_next(known, moment)

    def begin(self, slot: Slot, moments: Iterable[Moment]) -> None:
        """Add a slot that existed at startup, with the moments of its ready messages."""
        first = min(moments, default=None)
        if first is not None:
            self._set_next(self._by_first.setdefault(slot.first, SlotMoments(slot)), first)

    def hidden(self, now_ms: int) -> SlotMoments | None:
        """Return a slot that must be indexed before `take`, because it may contain the first due message, or None."""
        first = self._first_slot()
        if first is None or first[0] > now_ms or (self._near and self._near[0] < first[:2]):
            return None
        return first[2]

    def index(self, known: SlotMoments, moments: Iterable[Moment], now_ms: int) -> None:
        """Index the next messages of a slot. Shapes: `moments` are those of its ready messages."""
        share = max(NEAR_MIN_SLOT, NEAR_MAX // len(self._by_first))
        for due_ms, message_id in known.advance(moments, now_ms, share):
            heappush(self._near, (due_ms, message_id, known.slot))
        if known.next is not None:
            self._set_next(known, known.next)

    def take(self, now_ms: int) -> tuple[int, int, Slot] | None:
        """Remove and return the first due message: its moment, id and slot. Return None if none is due, or if a slot
        must be indexed first.
        """
        if not self._near or self._near[0][0] > now_ms or self.hidden(now_ms) is not None:
            return None
        return heappop(self._near)

    def put_back(self, due_ms: int, message_id: int, slot: Slot) -> None:
        heappush(self._near, (due_ms, message_id, slot))

    def forget(self, slot: Slot) -> None:
        self._by_first.pop(slot.first, None)

    def clear(self) -> None:
        self._by_first.clear()
        self._near.clear()
        self._slots.clear()

    def _set_next(self, known: SlotMoments, moment: Moment) -> None:
        known.expect(moment)
        heappush(self._slots, (*moment, known))
        if len(self._slots) > 64 and len(self._slots) > 4 * len(self._by_first):
            self._slots = [(*one.next, one) for one in self._by_first.values() if one.next is not None]
            heapify(self._slots)

    def _first_slot(self) -> tuple[int, int, SlotMoments] | None:
        slots = self._slots
        while slots:
            due_ms, message_id, known = slots[0]
            if known.next == (due_ms, message_id) and self._by_first.get(known.slot.first) is known:
                return slots[0]
            heappop(slots)
        return None
