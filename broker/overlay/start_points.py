"""The virtual times from which on the bindings of a leaf get what matches them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from broker.overlay.packets import Conjunction, Space


class StartPoints:
    """The start point of each binding, and the lowest and the highest one of each space.

    A binding that was recovered keeps its own, however late the leaf's virtual time is now: what its leaf was promised
    before the crash still comes.
    """

    __slots__ = ("_came", "_durable", "_gone", "_limits", "_points", "_recovered", "_spaces")

    def __init__(self, recovered: Mapping[str, int]) -> None:
        self._recovered = dict(recovered)
        self._points: dict[Space, dict[str, int]] = {}
        self._spaces: dict[str, Space] = {}
        self._durable: set[str] = set()
        self._came: dict[str, int] = {}
        self._gone: set[str] = set()
        self._limits: dict[Space, tuple[int, int]] = {}

    def change(
        self,
        added: Collection[tuple[str, Conjunction, bool]],
        removed: Collection[str],
        start_point: Callable[[str], int],
    ) -> None:
        """Apply a batch. `start_point` tells that of a new binding. Cost: the batch."""
        for binding in removed:
            self._remove(binding)
        for binding, conjunction, is_durable in added:
            self._remove(binding)
            point = start_point(binding)
            point = min(point, self._recovered.get(binding, point))
            self._points.setdefault(conjunction.space, {})[binding] = point
            self._spaces[binding] = conjunction.space
            self._limits.pop(conjunction.space, None)
            if is_durable:
                self._durable.add(binding)
                self._came[binding] = point
                self._gone.discard(binding)
        self._recovered = {}

    def of(self, binding: str) -> int:
        """Return the start point of a binding. Raises: KeyError if there is none."""
        return self._points[self._spaces[binding]][binding]

    def floor(self, space: Space) -> int | None:
        """Return the lowest start point of a space, None without bindings. Cost: all of them after a change."""
        limits = self._find_limits(space)
        return None if limits is None else limits[0]

    def ceiling(self, space: Space) -> int:
        """Return the highest start point of a space, 0 without bindings. Cost: all of them after a change."""
        limits = self._find_limits(space)
        return 0 if limits is None else limits[1]

    def durable(self) -> dict[str, int]:
        """Return the start points of the durable bindings. Cost: all of them."""
        return {binding: self.of(binding) for binding in self._durable}

    def take_changes(self) -> tuple[dict[str, int], set[str]]:
        """Return the durable bindings that came since the last call, with start points, and those that went."""
        came, self._came = self._came, {}
        gone, self._gone = self._gone, set()
        return came, gone

    def _find_limits(self, space: Space) -> tuple[int, int] | None:
        points = self._points.get(space)
        if points is None:
            return None
        limits = self._limits.get(space)
        if limits is None:
            values = points.values()
            limits = self._limits[space] = min(values), max(values)
        return limits

    def _remove(self, binding: str) -> None:
        space = self._spaces.pop(binding, None)
        if space is None:
            return
        del self._points[space][binding]
        if not self._points[space]:
            del self._points[space]
        self._limits.pop(space, None)
        if binding in self._durable:
            self._durable.remove(binding)
            self._gone.add(binding)
            self._came.pop(binding, None)
