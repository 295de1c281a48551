"""A stream at a subscribing leaf: it delivers the messages in order, each once, from the start point on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from broker.overlay.packets import Data, Element, Incarnations, Nack, StreamName, StreamRun, Vector, VectorChange
from broker.overlay.progress import Coverage

WHOLE_STREAM = 1 << 62
"""Above all numbers: the publishing leaf answers a request for this number with the position of the stream."""

GRACE_MS = 20
"""How long numbers may be missing before they are requested: another broker of the node may still send them."""

PAUSE_MAX_MS = 1_000
"""How long a sequence of answers may pause before the request is repeated."""

WAIT_FIRST_MS = 300
WAIT_MIN_MS = 100
WAIT_MAX_MS = 5_000
RANGES_MAX = 1_000
KNOWN_VECTORS = 8


class RoundTrip:
    """An estimate of the time until an answer arrives.

    Source: RFC 6298, with shorter limits; as there, answers to repeated requests are not measured.
    """

    def __init__(self) -> None:
        self._smoothed_ms = 0
        self._deviation_ms = 0
        self.timeout_ms = WAIT_FIRST_MS

    def measured(self, elapsed_ms: int) -> None:
        """Update the estimate with the time of an answer."""
        if self._smoothed_ms:
            self._deviation_ms = (3 * self._deviation_ms + abs(self._smoothed_ms - elapsed_ms)) // 4
            self._smoothed_ms = (7 * self._smoothed_ms + elapsed_ms) // 8
        else:
            self._smoothed_ms = max(1, elapsed_ms)
            self._deviation_ms = elapsed_ms // 2
        self.timeout_ms = min(WAIT_MAX_MS, max(WAIT_MIN_MS, self._smoothed_ms + 4 * self._deviation_ms))

    def back_off(self) -> None:
        """Double the timeout of the next answer."""
        self.timeout_ms = min(WAIT_MAX_MS, 2 * self.timeout_ms)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to publish into the exchange of its space.

    A binding receives it if the binding's start point is at or below `virtual_time`. `doubtful` means that consumers of
    this leaf may have received it before a crash.
    """

    stream: StreamName
    data: Data
    virtual_time: int
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class StreamGap:
    """Numbers of a stream that this leaf will never receive, although its bindings may have wanted some of them."""

    stream: StreamName
    first: int
    last: int


class ByteBudget:
    """The bytes that all sinks of a leaf together may buffer."""

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
        self.used_bytes -= size_bytes


def size_bytes(element: Element) -> int:
    """Return the approximate memory of an element."""
    return element.size_bytes + 200 if isinstance(element, Data) else 200 + 50 * len(element.new)


class Sink:
    """One incarnation of a stream at one leaf.

    The sink needs a base: the number from which it receives everything that the leaf wants. The base is the vector
    change that reaches the lowest start point of the leaf's bindings, or a run from number 1 on. A leaf that received
    `former` incarnations asks the publishing leaf instead; the base is where the answer starts. Before that, the sink
    does not have a position.

    A consumer may receive a message before it is on disk. So after a crash all messages that the stream had by then are
    doubtful: those up to `doubtful_upto`, which the publishing leaf reports.

    Shapes: deliveries up to `committed_upto` are durable, or precede the base.
    Invariant: elements are delivered in the order of their numbers, and a number is silent only if a broker with
        sufficient information said so.
    """

    def __init__(
        self,
        leaf: str,
        stream: StreamName,
        position: int | None,
        budget: ByteBudget,
        *,
        doubtful_upto: int = 0,
        former: Incarnations = (),
        read_time: Callable[[int], int] = lambda time: time,
    ) -> None:
        """`read_time` converts the leaf's entry in a vector to a time of its own clock."""
        self._leaf = leaf
        self.former = former
        self._read_time = read_time
        self.stream = stream
        self._budget = budget
        self._coverage = None if position is None else Coverage(position)
        self.doubtful_upto = doubtful_upto
        self._entry: int | None = None  # this leaf's entry in the vector in force, or None if unknown
        self._entries: dict[int, int] = {}  # its entries in vectors, by the number of the vector change
        self._waiting: dict[int, tuple[Element, int | None]] = {}  # out of order, with the entry in force before each
        self._numbers: list[int] = []  # a heap of the numbers that wait
        self._delivered_upto = self.committed_upto = self._acked = 0 if position is None else position
        self.reached = 0 if position is None else position
        self._has_tip = False
        self._gaps: list[StreamGap] = []
        self._wants_base = False
        self._round_trip = RoundTrip()
        self._asked_ms = self._asked_first = -1  # of the open request, or -1 if there is none
        self._repeated = False  # the open request repeats an unanswered one
        self._has_answers = False  # the last run was an answer
        self._hole_first = -1  # the first hole, which is requested GRACE_MS after `_hole_ms`
        self._hole_ms = 0
        self.attempts = 0
        self.repairs = 0

    @property
    def position(self) -> int | None:
        """The number up to which everything has arrived, or None if there is no base yet."""
        return None if self._coverage is None else self._coverage.upto

    @property
    def is_settled(self) -> bool:
        """Whether all deliveries are durable and no element waits for missing numbers."""
        return not self._waiting and self.committed_upto >= self._delivered_upto

    @property
    def awaits_answers(self) -> bool:
        """Whether answers to a request are expected."""
        return self._has_answers or self._asked_ms >= 0

    def received(self, run: StreamRun, floor: int | None) -> list[Delivery]:
        """Process a run, and return the messages that can be delivered now.

        `floor` is the lowest start point of the leaf's bindings in the space, or None if there are none.
        Cost: O(elements of the run, and elements that waited for it).
        """
        if run.vector is not None:
            self._remember(run.vector_at, self._time_in(run.vector))
        if run.target and run.target != self._leaf:
            return []
        self.reached = max(self.reached, run.last)
        coverage = self._coverage
        if coverage is None:
            coverage = self._find_base(run, floor)
            if coverage is None:
                return []
        if run.last < run.first:
            self._has_tip = True
            if run.target and self.doubtful_upto == WHOLE_STREAM:
                self.doubtful_upto = run.last
            return []
        if run.last <= coverage.upto:
            return []
        if run.first > coverage.upto + 1:
            self._buffer(coverage, run)
            return []
        return self._advance_through(coverage, run, floor)

    def committed(self, number: int) -> None:
        """Record that all deliveries up to a number are durable."""
        self.committed_upto = max(self.committed_upto, number)

    def ack(self) -> int | None:
        """Return the number up to which the stream is no longer needed, or None if there is no base yet."""
        if self._coverage is None:
            return None
        return self._coverage.upto if self.committed_upto >= self._delivered_upto else self.committed_upto

    def take_ack(self) -> int | None:
        """Return the number to acknowledge now, or None: a new number, or after a tip the last number again."""
        number = self.ack()
        if not number or (number <= self._acked and not self._has_tip):
            return None
        self._acked = number
        self._has_tip = False
        return number

    def take_gaps(self) -> list[StreamGap]:
        """Return the gaps found since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def nack(self, floor: int | None, now_ms: int, limit_bytes: int) -> Nack | None:
        """Return the request for missing numbers, or None if none is due. If no number is missing but answers are
        arriving, the request reports the position, so that the next answers are sent in time.
        """
        hole = self._hole(floor)
        if hole is None:
            if self._asked_ms >= 0 and not (self._repeated or self._has_answers):
                self._round_trip.measured(now_ms - self._asked_ms)
            self._asked_ms = self._hole_first = -1
            if not self._has_answers or self._coverage is None or self._asked_first == self._coverage.upto + 1:
                return None
            self._asked_first = self._coverage.upto + 1
            return Nack(self.stream, self._asked_first, self._asked_first - 1, self._leaf, floor or 0, limit_bytes)
        first, last = hole
        if self._asked_ms >= 0:
            if first != self._asked_first:
                if not (self._repeated or self._has_answers):
                    self._round_trip.measured(now_ms - self._asked_ms)
                self.attempts = 0
            elif now_ms < self._asked_ms + max(self._round_trip.timeout_ms, PAUSE_MAX_MS if self._has_answers else 0):
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
        return Nack(self.stream, first, last, self._leaf, floor or 0, limit_bytes, () if first else self.former)

    def reset_request(self) -> None:
        """Forget the open request, so that it is soon repeated: its answers may have been lost with a link."""
        self._has_answers = False
        self._asked_ms = -1

    def _hole(self, floor: int | None) -> tuple[int, int] | None:
        if self._coverage is not None:
            hole = self._coverage.hole(self.reached)
            asks = hole is None and self.doubtful_upto == WHOLE_STREAM
            return (WHOLE_STREAM, WHOLE_STREAM) if asks else hole
        return (0, 0) if self._wants_base and floor is not None else None

    def _time_in(self, vector: Vector) -> int:
        """Return this leaf's entry in a vector as a time of its own clock, or 0 if there is none."""
        time = vector.get(self._leaf, 0)
        return self._read_time(time) if time else 0

    def _remember(self, vector_at: int, entry: int) -> None:
        self._entries[vector_at] = entry
        if len(self._entries) > KNOWN_VECTORS:
            del self._entries[min(self._entries)]

    def close(self) -> None:
        """Drop the buffered elements of a sink that will receive nothing more."""
        if self._coverage is not None:
            self._drop_waiting(self._coverage)

    def _find_base(self, run: StreamRun, floor: int | None) -> Coverage | None:
        """Return a coverage of all numbers before the base, or None if no binding exists or the run lacks the base."""
        if floor is None:
            return None
        if self.former:
            self._wants_base = not run.target or run.first > 1 + max(number for _, number in self.former)
            return None if self._wants_base else self._begin(run.first - 1)
        if run.first == 1 and run.last > 0:
            self._entry = 0
            return self._begin(0)
        entry = self._entries.get(run.vector_at, 0 if run.vector_at == 0 else None)
        for element in run.elements:
            if isinstance(element, VectorChange):
                before = self._time_in(element.old)
                entry = self._time_in(element.new)
                if before < floor <= entry:
                    self._entry = before
                    return self._begin(element.number - 1)
        self._wants_base = entry is None or entry >= floor
        return None

    def _begin(self, position: int) -> Coverage:
        self._coverage = Coverage(position)
        self._wants_base = False
        self._delivered_upto = self.committed_upto = position
        return self._coverage

    def _buffer(self, coverage: Coverage, run: StreamRun) -> None:
        """Buffer a run until the numbers before it have arrived, unless it is lost or there is no room."""
        if run.lost or coverage.ranges >= RANGES_MAX:
            return
        new: list[tuple[Element, int | None]] = []
        entry = self._entry_before(run, run.first)
        for element in run.elements:
            if element.number not in coverage:
                new.append((element, entry))
            if isinstance(element, VectorChange):
                entry = self._time_in(element.new)
        if not self._budget.reserve(sum(size_bytes(element) for element, _ in new)):
            return
        for element, before in new:
            self._waiting[element.number] = element, before
            heappush(self._numbers, element.number)
        coverage.add(run.first, run.last)

    def _advance_through(self, coverage: Coverage, run: StreamRun, floor: int | None) -> list[Delivery]:
        """Deliver the next run and the buffered elements that follow it, if the vector in force is known."""
        if run.lost:
            return self._skip_lost(coverage, run, floor)
        expected = coverage.upto + 1
        if self._entry is None:
            self._entry = self._entry_before(run, expected)
            if self._entry is None and not _begins_with_vector(run, expected):
                return []
        self._has_answers = bool(run.target)
        deliveries: list[Delivery] = []
        self._deliver((e for e in run.elements if e.number >= expected), floor, deliveries)
        self._advance(coverage, run.first, run.last, floor, deliveries)
        return deliveries

    def _advance(
        self, coverage: Coverage, first: int, last: int, floor: int | None, deliveries: list[Delivery]
    ) -> None:
        """Advance over the next numbers, then deliver buffered elements; drop these if their vector is unknown."""
        if self._entry is None and self._numbers and self._waiting[self._numbers[0]][1] is None:
            self._drop_waiting(coverage)
        coverage.add(first, last)
        if self._numbers and self._numbers[0] <= coverage.upto:
            if self._entry is None:
                self._entry = self._waiting[self._numbers[0]][1]
            self._deliver(self._drain(last, coverage.upto), floor, deliveries)

    def _skip_lost(self, coverage: Coverage, run: StreamRun, floor: int | None) -> list[Delivery]:
        """Skip lost numbers, except for those that have arrived out of order."""
        deliveries: list[Delivery] = []
        while coverage.upto < run.last:
            first, last = coverage.hole(run.last) or (coverage.upto + 1, run.last)
            last = min(last, run.last)
            self._gaps.append(StreamGap(self.stream, first, last))
            self._entry = None
            self._advance(coverage, first, last, floor, deliveries)
        return deliveries

    def _drop_waiting(self, coverage: Coverage) -> None:
        """Drop the runs that arrived out of order; the answers to the next requests contain their vector."""
        coverage.forget_later()
        self._budget.release(sum(size_bytes(element) for element, _ in self._waiting.values()))
        self._waiting.clear()
        self._numbers.clear()

    def _entry_before(self, run: StreamRun, expected: int) -> int | None:
        """Return this leaf's entry in the vector in force before a number of the run, or None if unknown."""
        entry = self._entries.get(run.vector_at, 0 if run.vector_at == 0 else None)
        for element in run.elements:
            if element.number >= expected:
                break
            if isinstance(element, VectorChange):
                entry = self._time_in(element.new)
        return entry

    def _deliver(self, elements: Iterable[Element], floor: int | None, deliveries: list[Delivery]) -> None:
        entry = self._entry or 0
        for element in elements:
            if isinstance(element, VectorChange):
                after = self._time_in(element.new)
                if after < entry and floor is not None and floor <= entry:
                    self._gaps.append(StreamGap(self.stream, element.number, element.number))
                self._entry = entry = after
                self._remember(element.number, after)
            elif floor is not None and entry >= floor:
                self._delivered_upto = element.number
                doubtful = element.number <= self.doubtful_upto
                deliveries.append(Delivery(self.stream, element, entry, doubtful))

    def _drain(self, above: int, upto: int) -> Iterable[Element]:
        """Remove the buffered elements up to `upto`, and yield those above `above`; the others arrived twice."""
        while self._numbers and self._numbers[0] <= upto:
            element, _ = self._waiting.pop(heappop(self._numbers))
            self._budget.release(size_bytes(element))
            if element.number > above:
                yield element


def _begins_with_vector(run: StreamRun, expected: int) -> bool:
    """Return whether the first element from a number on, if any, is a vector change."""
    for element in run.elements:
        if element.number >= expected:
            return isinstance(element, VectorChange)
    return True
