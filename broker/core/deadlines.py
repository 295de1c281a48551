"""Deadlines: actions and the moments at which they are due. The owner of a clock calls `run`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final

TURN_SHARE: Final = 1000  # units of about ten microseconds that background work may use in one loop turn
NEVER: Final = 1 << 61  # later than any moment; compiled code compares integers of up to 62 bits without a call


class Clock:
    """The broker's clock, in milliseconds. Wall-clock time is ``now_ms`` minus ``ahead_ms``. This is a class, not a
    protocol, because compiled code reads an attribute of a class without a lookup by name.
    """

    def __init__(self, now_ms: int = 0, ahead_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.ahead_ms = ahead_ms


class Deadlines:
    """Schedule one action for each key.

    Units: moments are in milliseconds of the broker's clock. ``units_left`` is the unused part of the turn's share.
        Work beyond the share is done in the next turn, so that clients do not wait while a million messages expire.
    Invariant: when a turn begins, no moment is earlier than ``earliest_ms``, which is read without a call. ``armed`` is
        called whenever a new moment is earlier than all others.
    Cost: O(log n) to set and to cancel, amortised.
    """

    def __init__(self, clock: Clock, armed: Callable[[], None] = lambda: None) -> None:
        self.clock = clock
        self._heap: list[tuple[int, int, Hashable]] = []
        self._actions: dict[Hashable, tuple[int, int, Callable[[], object]]] = {}
        self._serial = 0
        self.armed = armed
        self.earliest_ms = NEVER
        self.units_left = TURN_SHARE

    @property
    def next_ms(self) -> int | None:
        """The earliest moment that is set, or None if there is none."""
        heap = self._heap
        while heap and not self._is_current(heap[0]):
            heappop(heap)
        self.earliest_ms = heap[0][0] if heap else NEVER
        return heap[0][0] if heap else None

    def at_ms(self, key: Hashable) -> int | None:
        """Return the moment set for a key, or None if there is none."""
        found = self._actions.get(key)
        return None if found is None else found[0]

    def set(self, key: Hashable, at_ms: int, action: Callable[[], object]) -> None:
        """Set the moment and the action of a key, replacing former ones; do nothing if the moment is unchanged."""
        known = self._actions.get(key)
        if known is not None and known[0] == at_ms:
            return
        first_ms = self.next_ms
        self._serial += 1
        self._actions[key] = (at_ms, self._serial, action)
        heappush(self._heap, (at_ms, self._serial, key))
        self._compact()
        if first_ms is None or at_ms < first_ms:
            self.earliest_ms = at_ms
            self.armed()

    def next_turn(self, key: Hashable, action: Callable[[], object]) -> None:
        """Call `action` in the next run."""
        self.set(key, self.clock.now_ms, action)

    def cancel(self, key: Hashable) -> None:
        """Cancel the action of a key, if one is set."""
        if self._actions.pop(key, None) is not None:
            self._compact()

    def end(self) -> None:
        """Cancel everything, because the vhost has ended."""
        self._actions.clear()
        self._heap.clear()
        self.armed = lambda: None

    def spend(self, units: int) -> None:
        self.units_left -= units

    def begin_turn(self) -> None:
        """Reset the share for the next turn."""
        self.units_left = TURN_SHARE

    def run(self, now_ms: int) -> None:
        """Call the actions that are due, earliest first, within the turn's share; each takes at least one unit. Actions
        that are set during a run are called in a later one.
        """
        last = self._serial
        later: list[tuple[int, int, Hashable]] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms and self.units_left > 0:
            entry = heappop(heap)
            if not self._is_current(entry):
                continue
            if entry[1] > last:
                later.append(entry)
                continue
            self.units_left -= 1
            self._actions.pop(entry[2])[2]()
        for entry in later:
            heappush(heap, entry)

    def _is_current(self, entry: tuple[int, int, Hashable]) -> bool:
        found = self._actions.get(entry[2])
        return found is not None and found[1] == entry[1]

    def _compact(self) -> None:
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._actions):
            self._heap[:] = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)
