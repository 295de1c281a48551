"""The barrier of the topology log: which members still have to apply a version before it is answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

__all__ = ["Barrier"]


class Barrier:
    """Calls back when every member that a version concerns has applied it or has left.

    Members are named by their epochs, which no other member ever has.
    Invariant: versions pass in order.
    """

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}
        self._departed: set[int] = set()
        self._waiting: deque[tuple[int, Collection[int], Callable[[], None]]] = deque()

    def __len__(self) -> int:
        """Return how many versions wait."""
        return len(self._waiting)

    def wait(self, version: int, epochs: Collection[int], passed: Callable[[], None]) -> None:
        """Call `passed` when these members have applied a version, which is newer than all that wait."""
        self._waiting.append((version, epochs, passed))
        self._pass()

    def applied(self, epoch: int, version: int) -> None:
        """Note that a member has applied all changes up to a version."""
        if version > self._applied.get(epoch, -1):
            self._applied[epoch] = version
            self._pass()

    def awaited(self) -> set[int]:
        """Return the members that some version waits for."""
        return {epoch for _, epochs, _ in self._waiting for epoch in epochs} - self._departed

    def departed(self, epochs: Collection[int]) -> None:
        """Wait no more for members that were counted out or have left."""
        self._departed.update(epochs)
        for epoch in epochs:
            self._applied.pop(epoch, None)
        self._pass()

    def clear(self) -> None:
        """Forget everything; nothing is called."""
        self._applied.clear()
        self._departed.clear()
        self._waiting.clear()

    def _pass(self) -> None:
        while self._waiting:
            version, epochs, passed = self._waiting[0]
            if any(self._applied.get(epoch, -1) < version for epoch in epochs if epoch not in self._departed):
                break
            self._waiting.popleft()
            passed()
