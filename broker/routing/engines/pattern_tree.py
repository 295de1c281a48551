"""A tree of forks over buckets: patterns by the literals of those places that tell them apart best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from broker.routing.engines.bitmap_bucket import Bucket, Part, Solo
from broker.routing.engines.bitmap_fork import Fork, best_place

T = TypeVar("T")

COLUMNS: Final = 128
"""Patterns that a bucket holds before it bursts into a fork."""
FOLD: Final = 24
"""Patterns at which a fork folds into a bucket."""
CROWD: Final = 16
"""Times COLUMNS that a bucket may hold whose patterns no place tells apart well."""


class PatternTree(Generic[T]):
    """Maps patterns to targets, and a key to the targets of those that match it.

    A bucket that gets too many patterns becomes a fork with smaller buckets below, and a fork that has few left becomes
    a bucket; a pattern alone is a leaf of its own.
    """

    __slots__ = ("_root", "size", "visited")

    def __init__(self) -> None:
        self.visited = 0
        self.size = 0
        self._root: Part[T] | None = None

    def gather(self, words: list[str], length: int, found: list[T]) -> None:
        """Append the targets that match to what was found. Shapes: as of `Part.gather`."""
        root = self._root
        if root is not None:
            self.visited += root.gather(words, length, found)

    def add(self, solo: Solo[T]) -> None:
        """Store a pattern that is not there yet. Cost: its words and the columns of one bucket."""
        above: Fork[T] | None = None
        part = self._root
        self.visited += 1
        self.size += 1
        while isinstance(part, Fork):
            self.visited += 1
            part.size += 1
            above = part
            part = part.part(solo.at(part.place))
        if isinstance(part, Bucket):
            part.insert(solo)
            if part.size > part.limit:
                self._burst(above, part)
        elif isinstance(part, Solo):
            self._put(above, solo, _pack([part, solo], () if above is None else above.tested))
        else:
            self._put(above, solo, solo)

    def find(self, solo: Solo[T]) -> T | None:
        """Return the target of a pattern, or None if it is not there."""
        part = self._root
        while isinstance(part, Fork):
            part = part.part(solo.at(part.place))
        target: T | None = None
        if isinstance(part, Bucket):
            column = part.column(solo)
            if column >= 0:
                target = part.targets[column]
        elif isinstance(part, Solo) and part.words == solo.words:
            target = part.target
        return target

    def remove(self, solo: Solo[T]) -> T | None:
        """Forget a pattern and return its target, None if it is not there. Cost: as of `add`."""
        path: list[Fork[T]] = []
        part = self._root
        while isinstance(part, Fork):
            path.append(part)
            part = part.part(solo.at(part.place))
        self.visited += len(path) + 1
        above = path[-1] if path else None
        target: T | None = None
        if isinstance(part, Bucket):
            column = part.column(solo)
            if column >= 0:
                target = part.delete(column).target
                if part.size == 1:
                    self._put(above, solo, part.solos()[0])
        elif isinstance(part, Solo) and part.words == solo.words:
            target = part.target
            self._put(above, solo, None)
        if target is None:
            return None
        self.size -= 1
        above = None
        for fork in path:
            fork.size -= 1
        for fork in path:
            if fork.size <= FOLD:
                self._put(above, solo, _pack(_solos(fork), () if above is None else above.tested))
                break
            above = fork
        return target

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of forks, buckets and rows."""
        forks = buckets = rows = 0
        pending = [] if self._root is None else [self._root]
        while pending:
            part = pending.pop()
            if isinstance(part, Fork):
                forks += 1
                pending += part.parts()
            elif isinstance(part, Bucket):
                buckets += 1
                rows += len(part.rows)
        return forks, buckets, rows

    def _put(self, above: Fork[T] | None, solo: Solo[T], part: Part[T] | None) -> None:
        """Set what is where the way of a pattern leads below a fork, or at the root."""
        if above is None:
            self._root = part
        else:
            above.put(solo.at(above.place), part)

    def _burst(self, above: Fork[T] | None, bucket: Bucket[T]) -> None:
        """Make a fork of a bucket, or let it grow if no place tells its patterns apart well."""
        solos = bucket.solos()
        place = best_place(solos, bucket.tested, desperate=bucket.size > CROWD * COLUMNS)
        if place is None:
            bucket.limit *= 2
            return
        fork: Fork[T] = Fork(place, bucket.tested)
        fork.size = len(solos)
        groups: dict[str, list[Solo[T]]] = {}
        for solo in solos:
            groups.setdefault(solo.at(place), []).append(solo)
        for word, group in groups.items():
            fork.put(word, _pack(group, fork.tested))
        self._put(above, solos[0], fork)


def _pack(solos: Sequence[Solo[T]], tested: tuple[int, ...]) -> Part[T] | None:
    """Return some patterns as what may stand below a fork."""
    if len(solos) < 2:
        return solos[0] if solos else None
    bucket: Bucket[T] = Bucket(tested, COLUMNS)
    for solo in solos:
        bucket.insert(solo)
    return bucket


def _solos(fork: Fork[T]) -> list[Solo[T]]:
    """Return the patterns below a fork."""
    solos: list[Solo[T]] = []
    pending: list[Part[T]] = [fork]
    while pending:
        part = pending.pop()
        if isinstance(part, Fork):
            pending += part.parts()
        elif isinstance(part, Bucket):
            solos += part.solos()
        elif isinstance(part, Solo):
            solos.append(part)
    return solos
