"""A stream at a leaf that subscribes: its messages in order, each once, from the start point on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from broker.overlay.packets import Data, Element, Incarnations, Nack, StreamName, StreamRun, Vector, VectorChange
from broker.overlay.progress import Coverage

WHOLE_STREAM = 1 << 62
"""Above all numbers: a request for it is answered with the position of the stream."""

GRACE_MS = 20
"""How long numbers may be missing before they are asked for: another broker of the node may still bring them."""

STREAM_MS = 1_000
"""How long a sequence of answers may pause before the request is repeated."""

FIRST_WAIT_MS = 300
LEAST_WAIT_MS = 100
LONGEST_WAIT_MS = 5_000
MOST_RANGES = 1_000
KNOWN_VECTORS = 8


class RoundTrip:
    """An estimate of the time until an answer arrives, in milliseconds.

    Source: RFC 6298, with shorter limits; as there, no answer to a repeated request is measured.
    """

    def __init__(self) -> None:
        self._smoothed_ms = 0
        self._deviation_ms = 0
        self.timeout_ms = FIRST_WAIT_MS

    def measured(self, elapsed_ms: int) -> None:
        """Learn from an answer."""
        if self._smoothed_ms:
            self._deviation_ms = (3 * self._deviation_ms + abs(self._smoothed_ms - elapsed_ms)) // 4
            self._smoothed_ms = (7 * self._smoothed_ms + elapsed_ms) // 8
        else:
            self._smoothed_ms = max(1, elapsed_ms)
            self._deviation_ms = elapsed_ms // 2
        self.timeout_ms = min(LONGEST_WAIT_MS, max(LEAST_WAIT_MS, self._smoothed_ms + 4 * self._deviation_ms))

    def back_off(self) -> None:
        """Wait twice as long for the next answer."""
        self.timeout_ms = min(LONGEST_WAIT_MS, 2 * self.timeout_ms)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for the exchange of its space.

    A binding gets it if its start point is at or below `virtual_time` when the message is published here. With
    `doubtful` consumers here may have got it before a crash.
    """

    stream: StreamName
    data: Data
    virtual_time: int
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class StreamGap:
    """Numbers of a stream that this leaf will never get, though its bindings may have wanted some of them."""

    stream: StreamName
    first: int
    last: int


class ByteBudget:
    """Bytes that the sinks of a leaf may keep in all."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def reserve(self, size_bytes: int) -> bool:
        """Reserve bytes, or return False if they exceed the limit."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Release bytes."""
        self.used_bytes -= size_bytes


def size_bytes(element: Element) -> int:
    """Return about how much memory an element takes."""
    return element.size_bytes + 200 if isinstance(element, Data) else 200 + 50 * len(element.new)


class Sink:
    """One incarnation of a stream at one leaf.

    Without a position the leaf knows no number from which on it has all that it wants: its base. The base is the vector
    change that reaches the lowest start point of the leaf's bindings, or a run from number 1 on. A leaf that had other
    incarnations of the stream, each up to a number, asks the publishing leaf instead: where the answer begins is the
    base.

    A consumer may get a message before it is on disk. So after a crash all that the stream had then is doubtful: up to
    the number that the publishing leaf reports.

    Shapes: `had` has the incarnations that the leaf had before this one. Consumers here may have got messages up to
    `doubtful_upto` before a crash. Deliveries up to `committed_upto` are durable, or were when the sink began.
    Invariant: elements leave in the order of their numbers, and a number is passed only if a broker with
    sufficient information stated what it holds.
    """

    def __init__(
        self,
        leaf: str,
        stream: StreamName,
        position: int | None,
        budget: ByteBudget,
        *,
        doubtful_upto: int = 0,
        had: Incarnations = (),
        read_time: Callable[[int], int] = lambda time: time,
    ) -> None:
        """`read_time` turns the leaf's entry in a vector into a time of its own clock."""
        self._leaf = leaf
        self.had = had
        self._read_time = read_time
        self.stream = stream
        self._budget = budget
        self._coverage = None if position is None else Coverage(position)
        self.doubtful_upto = doubtful_upto
        self._value: int | None = None
        self._known: dict[int, int] = {}
        self._waiting: dict[int, tuple[Element, int | None]] = {}  # with this leaf's entry in the vector before
        self._numbers: list[int] = []
        self._handed = self.committed_upto = self._acked = 0 if position is None else position
        self.reached = 0 if position is None else position
        self._tipped = False
        self._gaps: list[StreamGap] = []
        self._wants_base = False
        self._round_trip = RoundTrip()
        self._asked_ms = self._asked_first = -1
        self._repeated = False
        self._streams = False
        self._hole_first = -1
        self._hole_ms = 0
        self.attempts = 0
        self.repairs = 0

    @property
    def position(self) -> int | None:
        """The number up to which everything has arrived, None without a base."""
        return None if self._coverage is None else self._coverage.upto

    @property
    def is_settled(self) -> bool:
        """Whether all deliveries are durable, and no element waits for missing numbers."""
        return not self._waiting and self.committed_upto >= self._handed

    @property
    def asks(self) -> bool:
        """Whether answers to requests are on their way."""
        return self._streams or self._asked_ms >= 0

    def received(self, run: StreamRun, floor: int | None) -> list[Delivery]:
        """Take a run and return what can be delivered now.

        `floor` is the lowest start point of the leaf's bindings in the space, None without bindings.
        Cost: the elements of the run and those that waited.
        """
        self._learn(run)
        if run.target and run.target != self._leaf:
            return []
        self.reached = max(self.reached, run.last)
        coverage = self._coverage
        if coverage is None:
            coverage = self._find_base(run, floor)
            if coverage is None:
                return []
        if run.last < run.first:
            self._tipped = True
            if run.target and self.doubtful_upto == WHOLE_STREAM:
                self.doubtful_upto = run.last
            return []
        if run.last <= coverage.upto:
            return []
        if run.first > coverage.upto + 1:
            self._keep(coverage, run)
            return []
        return self._pass(coverage, run, floor)

    def committed(self, number: int) -> None:
        """Note that all deliveries up to a number are durable."""
        self.committed_upto = max(self.committed_upto, number)

    def ack(self) -> int | None:
        """Return the number up to which the stream is no longer needed, None without a base."""
        if self._coverage is None:
            return None
        return self._coverage.upto if self.committed_upto >= self._handed else self.committed_upto

    def take_ack(self) -> int | None:
        """Return the number to acknowledge now: a new one, or again the last one when the publisher waits for it."""
        number = self.ack()
        if not number or (number <= self._acked and not self._tipped):
            return None
        self._acked = number
        self._tipped = False
        return number

    def take_gaps(self) -> list[StreamGap]:
        """Return the gaps that were found since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def nack(self, floor: int | None, now_ms: int, limit_bytes: int) -> Nack | None:
        """Return the request for missing numbers, if one is due. While answers arrive, each request reports the
        position reached, so that the next answers are already on their way.
        """
        hole = self._hole(floor)
        if hole is None:
            if self._asked_ms >= 0 and not (self._repeated or self._streams):
                self._round_trip.measured(now_ms - self._asked_ms)
            self._asked_ms = self._hole_first = -1
            if not self._streams or self._coverage is None or self._asked_first == self._coverage.upto + 1:
                return None
            self._asked_first = self._coverage.upto + 1
            return Nack(self.stream, self._asked_first, self._asked_first - 1, self._leaf, floor or 0, limit_bytes)
        first, last = hole
        if self._asked_ms >= 0:
            if first != self._asked_first:
                if not (self._repeated or self._streams):
                    self._round_trip.measured(now_ms - self._asked_ms)
                self.attempts = 0
            elif now_ms < self._asked_ms + max(self._round_trip.timeout_ms, STREAM_MS if self._streams else 0):
                return None
            else:
                self._round_trip.back_off()
                self.attempts += 1
            self._repeated = first == self._asked_first
        else:
            if first != self._hole_first:
                self._hole_first, self._hole_ms = first, now_ms
            if now_ms < self._hole_ms + GRACE_MS:
                return None
            self._repeated = False
        self._asked_first, self._asked_ms = first, now_ms
        self.repairs += 1
        return Nack(self.stream, first, last, self._leaf, floor or 0, limit_bytes, () if first else self.had)

    def ask_anew(self) -> None:
        """Do not wait for the answers that a link may have lost."""
        self._streams = False
        self._asked_ms = -1

    def _hole(self, floor: int | None) -> tuple[int, int] | None:
        if self._coverage is not None:
            hole = self._coverage.hole(self.reached)
            asks = hole is None and self.doubtful_upto == WHOLE_STREAM
            return (WHOLE_STREAM, WHOLE_STREAM) if asks else hole
        return (0, 0) if self._wants_base and floor is not None else None

    def _learn(self, run: StreamRun) -> None:
        """Remember this leaf's entry in the vector that a run brings along."""
        if run.vector is None:
            return
        self._know(run.vector_at, self._time_in(run.vector))

    def _time_in(self, vector: Vector) -> int:
        """Return this leaf's entry in a vector, 0 if it has none."""
        time = vector.get(self._leaf, 0)
        return self._read_time(time) if time else 0

    def _know(self, vector_at: int, value: int) -> None:
        self._known[vector_at] = value
        if len(self._known) > KNOWN_VECTORS:
            del self._known[min(self._known)]

    def close(self) -> None:
        """Release the memory of the sink, because the stream is no longer wanted."""
        if self._coverage is not None:
            self._drop_waiting(self._coverage)

    def _find_base(self, run: StreamRun, floor: int | None) -> Coverage | None:
        """Return the numbers before the base as covered, None if the run does not contain the base."""
        if floor is None:
            return None
        if self.had:
            self._wants_base = not run.target or run.first > 1 + max(number for _, number in self.had)
            return None if self._wants_base else self._begin(run.first - 1)
        if run.first == 1 and run.last > 0:
            self._value = 0
            return self._begin(0)
        value = self._known.get(run.vector_at, 0 if run.vector_at == 0 else None)
        for element in run.elements:
            if isinstance(element, VectorChange):
                before = self._time_in(element.old)
                value = self._time_in(element.new)
                if before < floor <= value:
                    self._value = before
                    return self._begin(element.number - 1)
        self._wants_base = value is None or value >= floor
        return None

    def _begin(self, position: int) -> Coverage:
        self._coverage = Coverage(position)
        self._wants_base = False
        self._handed = self.committed_upto = position
        return self._coverage

    def _keep(self, coverage: Coverage, run: StreamRun) -> None:
        """Keep a run until those before it have arrived, if there is room."""
        if run.lost or coverage.ranges >= MOST_RANGES:
            return
        fresh: list[tuple[Element, int | None]] = []
        value = self._value_before(run, run.first)
        for element in run.elements:
            if element.number not in coverage:
                fresh.append((element, value))
            if isinstance(element, VectorChange):
                value = self._time_in(element.new)
        if not self._budget.reserve(sum(size_bytes(element) for element, _ in fresh)):
            return
        for element, before in fresh:
            self._waiting[element.number] = element, before
            heappush(self._numbers, element.number)
        coverage.add(run.first, run.last)

    def _pass(self, coverage: Coverage, run: StreamRun, floor: int | None) -> list[Delivery]:
        """Pass the numbers of the next run, and those that waited for it."""
        if run.lost:
            return self._pass_lost(coverage, run, floor)
        expected = coverage.upto + 1
        if self._value is None:
            self._value = self._value_before(run, expected)
            if self._value is None and not _begins_with_vector(run, expected):
                return []
        self._streams = bool(run.target)
        deliveries: list[Delivery] = []
        self._hand_out((e for e in run.elements if e.number >= expected), floor, deliveries)
        self._advance(coverage, run.first, run.last, floor, deliveries)
        return deliveries

    def _advance(
        self, coverage: Coverage, first: int, last: int, floor: int | None, deliveries: list[Delivery]
    ) -> None:
        """Pass the next numbers, then those that waited; those with an unknown vector are requested again."""
        if self._value is None and self._numbers and self._waiting[self._numbers[0]][1] is None:
            self._drop_waiting(coverage)
        coverage.add(first, last)
        if self._numbers and self._numbers[0] <= coverage.upto:
            if self._value is None:
                self._value = self._waiting[self._numbers[0]][1]
            self._hand_out(self._drain(last, coverage.upto), floor, deliveries)

    def _pass_lost(self, coverage: Coverage, run: StreamRun, floor: int | None) -> list[Delivery]:
        """Pass lost numbers, except for those that had arrived."""
        deliveries: list[Delivery] = []
        while coverage.upto < run.last:
            first, last = coverage.hole(run.last) or (coverage.upto + 1, run.last)
            last = min(last, run.last)
            self._gaps.append(StreamGap(self.stream, first, last))
            self._value = None
            self._advance(coverage, first, last, floor, deliveries)
        return deliveries

    def _drop_waiting(self, coverage: Coverage) -> None:
        """Drop runs that arrived out of order; they are requested again, and arrive with their vector."""
        coverage.forget_later()
        self._budget.release(sum(size_bytes(element) for element, _ in self._waiting.values()))
        self._waiting.clear()
        self._numbers.clear()

    def _value_before(self, run: StreamRun, expected: int) -> int | None:
        """Return this leaf's entry in the vector in force before a number of the run, None if it is not known."""
        value = self._known.get(run.vector_at, 0 if run.vector_at == 0 else None)
        for element in run.elements:
            if element.number >= expected:
                break
            if isinstance(element, VectorChange):
                value = self._time_in(element.new)
        return value

    def _hand_out(self, elements: Iterable[Element], floor: int | None, deliveries: list[Delivery]) -> None:
        value = self._value or 0
        for element in elements:
            if isinstance(element, VectorChange):
                after = self._time_in(element.new)
                if after < value and floor is not None and floor <= value:
                    self._gaps.append(StreamGap(self.stream, element.number, element.number))
                self._value = value = after
                self._know(element.number, after)
            elif floor is not None and value >= floor:
                self._handed = element.number
                doubtful = element.number <= self.doubtful_upto
                deliveries.append(Delivery(self.stream, element, value, doubtful))

    def _drain(self, above: int, upto: int) -> Iterable[Element]:
        """Yield the elements that waited, up to a number, and forget those that have come again."""
        while self._numbers and self._numbers[0] <= upto:
            element, _ = self._waiting.pop(heappop(self._numbers))
            self._budget.release(size_bytes(element))
            if element.number > above:
                yield element


def _begins_with_vector(run: StreamRun, expected: int) -> bool:
    """Return whether no message comes before the first vector change from a number on."""
    for element in run.elements:
        if element.number >= expected:
            return isinstance(element, VectorChange)
    return True
