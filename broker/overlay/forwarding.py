"""A stream at an inner broker: which elements are forwarded in each direction, and which ranges are unwanted."""

from __future__ import annotations

from typing import Final

from broker.overlay.interest import Interest
from broker.overlay.packets import Data, Element, StreamName, StreamRun, Vector, VectorChange
from broker.overlay.progress import Acknowledgements
from broker.overlay.virtual_time import NO_VECTOR

KNOWN_VECTORS = 8
NO_NODES: Final[tuple[str, ...]] = ()
_UNCONCERNED: Final = 0  # a verdict on a vector and a direction: no leaf of the vector is there
_SUFFICIENT: Final = 1  # the known interest there is complete up to the vector
_INSUFFICIENT: Final = 2  # the known interest there is not complete, or the vector is unknown


class ForwardingCounts:
    """Counts of forwarding decisions, over all streams of a broker."""

    def __init__(self) -> None:
        self.matched = 0
        self.filtered = 0
        self.flooded = 0

    def add(self, flooded: int, matched: int, filtered: int) -> None:
        """Count the decisions on the messages of a run."""
        self.flooded += flooded
        self.matched += matched
        self.filtered += filtered


class UnwantedRange:
    """Numbers that are not wanted in a direction, and were not announced there yet."""

    __slots__ = ("first", "last", "since_ms", "vector_at")

    def __init__(self, first: int, last: int, vector_at: int, since_ms: int) -> None:
        self.first = first
        self.last = last
        self.vector_at = vector_at
        self.since_ms = since_ms

    def is_continued_by(self, run: StreamRun) -> bool:
        """Return whether a run starts right after the range, with the same vector."""
        return self.last + 1 == run.first and self.vector_at == run.vector_at

    def extend(self, last: int) -> None:
        """Extend the range to another last number."""
        self.last = last


class Forwarding:
    """One stream at one inner broker.

    A vector without leaves of a direction does not concern the direction. The vector change that adds such a leaf is
    always forwarded, because the leaf learns of the stream from it. An unknown leaf may be in any direction.
    Invariant: a received element becomes silent in a direction only if the known interest there was sufficient, or if
        the vector of the element does not contain a leaf there.
    """

    def __init__(self, stream: StreamName) -> None:
        self.stream = stream
        self.source_node = ""  # the tree node from which runs without a target arrive
        self.reached = 0
        self.vector_at = 0
        self.vectors: dict[int, Vector] = {0: NO_VECTOR}
        self.unwanted: dict[str, UnwantedRange] = {}
        self.acks = Acknowledgements()
        self.is_idle = False  # no run has arrived since the last call of mark_idle()
        self._verdicts: dict[tuple[str, int], int] = {}
        self._version = -1

    def mark_idle(self) -> None:
        """Mark the stream as idle until the next run arrives."""
        self.is_idle = True

    def record(self, run: StreamRun, node: str) -> None:
        """Record the position and the vectors of the stream from a run; without a target, also where it came from."""
        self.is_idle = False
        if not run.target:
            self.source_node = node
        if run.vector is not None:
            self._remember(run.vector_at, run.vector)
        if run.last >= self.reached:
            self.reached = run.last
            self.vector_at = max(self.vector_at, run.vector_at)
        for element in run.elements:
            if isinstance(element, VectorChange):
                self._remember(element.number, element.new)
                self.vector_at = max(self.vector_at, element.number)

    def forward(
        self, run: StreamRun, node: str, interest: Interest, counts: ForwardingCounts, now_ms: int
    ) -> list[StreamRun]:
        """Return the runs to forward to a node, in order; an unwanted range may be delayed. Cost: O(elements)."""
        verdict = self._verdict(node, run.vector_at, interest)
        if run.lost or run.last < run.first:
            if verdict == _UNCONCERNED and not run.target:
                return []
            return [*self.flush(node), run]
        kept: list[Element] = []
        flooded = matched = filtered = 0
        concerned = verdict != _UNCONCERNED
        answers = interest.answers(self.stream.space)
        for element in run.elements:
            if isinstance(element, Data):
                if verdict == _INSUFFICIENT:
                    flooded += 1
                    kept.append(element)
                elif verdict == _SUFFICIENT and (
                    node in answers.get(element.key, NO_NODES) or self._wants(node, element, interest)
                ):
                    matched += 1
                    kept.append(element)
                else:
                    filtered += 1
                continue
            verdict = self._verdict(node, element.number, interest)
            if verdict != _UNCONCERNED or _concerns(node, element.old, interest):
                kept.append(element)
                concerned = True
        counts.add(flooded, matched, filtered)
        if run.target:
            return [_with_elements(run, run.first, tuple(kept))]
        if kept:
            return self._send(run, node, tuple(kept))
        return self._delay(run, node, now_ms) if concerned else []

    def flush(self, node: str) -> list[StreamRun]:
        """Remove the unwanted range that was not announced to a node yet, if any, and return it as a run."""
        unwanted = self.unwanted.pop(node, None)
        return [] if unwanted is None else [self._silent_run(unwanted)]

    def overdue(self, since_ms: int) -> list[str]:
        """Return the nodes with an unwanted range that began at `since_ms` or earlier."""
        return [node for node, unwanted in self.unwanted.items() if unwanted.since_ms <= since_ms]

    def concerns(self, node: str, interest: Interest) -> bool:
        """Return whether the newest vector contains, or may contain, a leaf beyond a node."""
        return self._verdict(node, self.vector_at, interest) != _UNCONCERNED

    def tip(self) -> StreamRun:
        """Return an empty run that announces the latest number of the stream that this broker received."""
        vector = self.vectors.get(self.vector_at)
        return StreamRun(self.stream, self.reached + 1, self.reached, self.vector_at, vector=vector)

    def _wants(self, node: str, data: Data, interest: Interest) -> bool:
        """Return whether a known pattern of a direction matches any routing key of a message."""
        space = self.stream.space
        if node in interest.wanting(space, data.key):
            return True
        return any(node in interest.wanting(space, key) for key in data.copies)

    def _send(self, run: StreamRun, node: str, kept: tuple[Element, ...]) -> list[StreamRun]:
        """Return the run with the kept elements. An adjacent unwanted range is joined to it, any other precedes it."""
        unwanted = self.unwanted.pop(node, None)
        if unwanted is None:
            return [_with_elements(run, run.first, kept)]
        if unwanted.is_continued_by(run):
            return [_with_elements(run, unwanted.first, kept)]
        return [self._silent_run(unwanted), _with_elements(run, run.first, kept)]

    def _delay(self, run: StreamRun, node: str, now_ms: int) -> list[StreamRun]:
        """Extend the unwanted range by a run; if the run does not continue it, begin another and return the old one."""
        unwanted = self.unwanted.get(node)
        if unwanted is not None and unwanted.is_continued_by(run):
            unwanted.extend(run.last)
            return []
        before = self.flush(node)
        self.unwanted[node] = UnwantedRange(run.first, run.last, run.vector_at, now_ms)
        return before

    def _silent_run(self, unwanted: UnwantedRange) -> StreamRun:
        return StreamRun(self.stream, unwanted.first, unwanted.last, unwanted.vector_at)

    def _remember(self, number: int, vector: Vector) -> None:
        self.vectors[number] = vector
        if len(self.vectors) > KNOWN_VECTORS:
            del self.vectors[min(n for n in self.vectors if n)]

    def _verdict(self, node: str, number: int, interest: Interest) -> int:
        """Return the verdict on a vector and a direction. Cost: a look-up if cached, else O(leaves of the vector)."""
        if self._version != interest.version:
            self._verdicts.clear()
            self._version = interest.version
        verdict = self._verdicts.get((node, number))
        if verdict is None:
            vector = self.vectors.get(number)
            if vector is None:
                return _INSUFFICIENT
            if not _concerns(node, vector, interest):
                verdict = _UNCONCERNED
            else:
                verdict = _SUFFICIENT if interest.sufficient(node, self.stream.space, vector) else _INSUFFICIENT
            self._verdicts[node, number] = verdict
        return verdict


def _concerns(node: str, vector: Vector, interest: Interest) -> bool:
    """Return whether a leaf of the vector is beyond the node, or its direction is unknown."""
    for leaf in vector:
        direction = interest.direction(leaf)
        if direction is None or direction == node:
            return True
    return False


def _with_elements(run: StreamRun, first: int, kept: tuple[Element, ...]) -> StreamRun:
    """Return the run with another first number and with only the kept elements."""
    if first == run.first and len(kept) == len(run.elements):
        return run
    return StreamRun(run.stream, first, run.last, run.vector_at, kept, run.target, run.lost, run.vector)
