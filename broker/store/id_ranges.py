"""A set of message ids, kept as ranges. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class IdRanges:
    """The ids of one queue whose entries are still needed.

    Shapes: ``borders`` ascends: first id, end, first id, end ... with a gap between each end and the next first id.
    Cost: O(ranges); a backlog without gaps is one.
    """

    __slots__ = ("borders",)

    def __init__(self) -> None:
        self.borders: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.borders)

    def add(self, first: int, end: int) -> None:
        """Add the ids first <= id < end; some may be in the set already."""
        if first >= end:
            return
        borders = self.borders
        left, right = bisect_left(borders, first), bisect_right(borders, end)
        # At an even index, between two ranges, the new border is kept; at an odd one, inside a range, it is not.
        borders[left:right] = ([] if left % 2 else [first]) + ([] if right % 2 else [end])

    def remove(self, first: int, end: int) -> None:
        """Remove the ids first <= id < end; some may be missing already."""
        if first >= end:
            return
        borders = self.borders
        left, right = bisect_left(borders, first), bisect_right(borders, end)
        borders[left:right] = ([first] if left % 2 else []) + ([end] if right % 2 else [])

    def overlaps(self, first: int, end: int) -> bool:
        """Return whether any id with first <= id < end is in the set."""
        borders = self.borders
        place = bisect_right(borders, first)
        return bool(place % 2) or (place < len(borders) and borders[place] < end)

    def within(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of the ids first <= id < end that are in the set, as pairs of first id and end."""
        borders = self.borders
        place = bisect_right(borders, first)
        place -= place % 2
        found: list[tuple[int, int]] = []
        while place < len(borders) and borders[place] < end:
            found.append((max(first, borders[place]), min(end, borders[place + 1])))
            place += 2
        return found
