"""The starts of the broker and their seals: they distinguish the histories of two copies of a data folder."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

__all__ = ["SealStarts"]

STARTS_MAX: Final = 10_000  # the newest


class SealStarts:
    """The starts that sealed anything, each with its incarnation.

    Shapes: the incarnation is empty for seals of versions that did not write it.
    """

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: list[tuple[int, str]] = []  # with the first seal of each, ascending

    def __len__(self) -> int:
        return len(self._starts)

    def begin(self, seal: int, incarnation: str) -> None:
        """Note the start that wrote a seal, unless it also wrote the previous one."""
        if self.of(seal) != incarnation:
            self._starts.append((seal, incarnation))
            del self._starts[:-STARTS_MAX]

    def of(self, seal: int) -> str:
        """Return the start that wrote a seal."""
        at = bisect_right(self._starts, seal, key=_first)
        return self._starts[at - 1][1] if at else ""

    def last_of(self, incarnation: str, last_seal: int) -> int:
        """Return the last seal of a start, 0 when it wrote none; `last_seal` is the last of all starts."""
        starts = [(1, ""), *self._starts, (last_seal + 1, "")]
        return max((starts[at + 1][0] - 1 for at in range(len(starts) - 1) if starts[at][1] == incarnation), default=0)

    def rows(self) -> list[dict[str, Any]]:
        """Return the fields of the incarnation lines."""
        return [{"seal": seal, "incarnation": incarnation} for seal, incarnation in list(self._starts)]


def _first(start: tuple[int, str]) -> int:
    return start[0]
