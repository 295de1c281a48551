"""A stream at the leaf that publishes it: its vector, its runs, answers to nacks, what may be dropped, and its log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final, Protocol

from broker.overlay.packets import Data, Element, Nack, StreamName, StreamRun, Vector, VectorChange
from broker.overlay.progress import Acknowledgements, CatchUp
from broker.overlay.sink import WHOLE_STREAM
from broker.overlay.virtual_time import NO_VECTOR


@dataclass(frozen=True, slots=True)
class LeafState:
    """The state of a leaf that outlives its process.

    `time_bound` is above all virtual times ever sent, `start_points` those of the durable bindings, and `positions` the
    number of the last committed delivery of each stream. `crashed` means that it did not stop cleanly.
    """

    time_bound: int = 0
    start_points: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[StreamName, int] = field(default_factory=dict)
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class LogPart:
    """The stored elements from the requested number up to `last`; all others in between are gone."""

    last: int
    elements: tuple[Element, ...]


class StreamLog(Protocol):
    """One stream of a leaf, a queue with dense numbers from 1.

    Numbers up to `trimmed` are gone, except for the last vector change among them, which applies to the numbers after
    it.
    """

    @property
    def durable(self) -> int:
        """The highest durable number, 0 if there is none."""

    @property
    def trimmed(self) -> int:
        """The number up to which `trim` or a limit has dropped elements."""

    @property
    def lost(self) -> int:
        """The number up to which elements may have gone before all leaves had them; kept over a restart."""

    @property
    def changes(self) -> Sequence[VectorChange]:
        """The stored vector changes in order. Read once, when the stream is opened."""

    def read(self, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return elements from `first` on, at least one number; None if it must be asked again later."""

    def append_vector(self, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a vector change and return its number."""

    def before_next(self, call: Callable[[], None] | None) -> None:
        """Call a function once, right before the next element of the stream gets its number or the stream ends."""

    def trim(self, upto: int) -> None:
        """Drop all elements up to a number, except the last vector change among them."""

    def mark_lost(self, upto: int) -> None:
        """Record durably that elements up to a number are dropped before all leaves had them."""


RUN_BYTES: Final = 65_536
BURST_RUNS: Final = 16


class StreamSource:
    """One stream of this leaf.

    `vector` is V_m of the next message: the later of the known interest beyond the leaf's neighbour and of its earlier
    promises. Its entries never fall while their leaf stays in it. If it is not that of the last vector change of the
    stream, a change must be appended before the next message.

    The data folder may be a copy older than the state of others. So a vector change always precedes the first message
    of a process, and gives the stream a new incarnation. Leaves that had an earlier one ask what follows.

    Invariant: a number that a leaf of the vector has not acknowledged is kept, unless a limit of the log drops it or
    the leaf is given up; both leave a mark, so that the leaf learns of a gap.
    """

    def __init__(self, stream: StreamName, log: StreamLog) -> None:
        """Find what the log has of a stream; the incarnation of `stream` is that of this process."""
        self._log = log
        self._changes = list(log.changes)
        self._incarnation = stream.incarnation
        self.stream = stream._replace(incarnation=self._changes[-1].incarnation) if self._changes else stream
        self.rolled_back: dict[str, int] = {}  # leaves that had more than this data folder, and up to which number
        self._appended: Vector = self._changes[-1].new if self._changes else NO_VECTOR
        self.vector: Vector = self._appended
        self.acks = Acknowledgements()
        self._catch_ups: dict[str, CatchUp] = {}
        self.sent = self.last

    @property
    def last(self) -> int:
        """The highest durable number."""
        return self._log.durable

    @property
    def trimmed(self) -> int:
        """The number up to which elements were removed from the log."""
        return self._log.trimmed

    @property
    def is_stale(self) -> bool:
        """Whether the vector differs from the last vector change."""
        return self.vector != self._appended

    @property
    def begins(self) -> bool:
        """Whether a vector change must be appended before the next message."""
        return self.is_stale or not self._changes or self._changes[-1].incarnation != self._incarnation

    @property
    def has_newcomers(self) -> bool:
        """Whether the vector names a leaf that the stream does not name yet."""
        return not self.vector.keys() <= self._appended.keys()

    def reopen(self, log: StreamLog) -> None:
        """Continue in another log, because the exchange was deleted with its vhost and declared again."""
        self._log = log

    def review(self, known: Vector, is_left: Callable[[str, int], bool], given_up: Collection[str]) -> None:
        """Find the vector of the next message; append it at once if numbers are lost to a leaf that is given up.

        `known` has the virtual times of the interested leaves. `is_left` tells whether a leaf is known at a virtual
        time, or a later one, to have no interest. Any other leaf keeps its entry: this broker has not heard of it yet.
        Cost: the leaves of both vectors.
        """
        vector = {leaf: max(virtual_time, self._appended.get(leaf, 0)) for leaf, virtual_time in known.items()}
        for leaf, virtual_time in self.vector.items():
            if leaf in vector:
                vector[leaf] = max(vector[leaf], virtual_time)
            elif leaf not in given_up and not is_left(leaf, virtual_time):
                vector[leaf] = virtual_time
        lost = [leaf for leaf in self._appended if leaf in given_up and leaf in self.vector and leaf not in vector]
        self.vector = vector
        if lost:
            self.change_vector()
            before = self._changes[-1].number - 1
            if any(self.acks.position(leaf) < before for leaf in lost):
                self._log.mark_lost(before)

    def change_vector(self) -> None:
        """Append the vector of the next message as a vector change."""
        old, new = self._appended, self.vector
        self._log.before_next(None)
        number = self._log.append_vector(old, new, self._incarnation)
        change = VectorChange(number, old, new, self._incarnation)
        self.stream = self.stream._replace(incarnation=self._incarnation)
        self.acks.credit([leaf for leaf in new if leaf not in old], change.number - 1)
        self._changes.append(change)
        self._appended = new

    def before_next(self, call: Callable[[], None] | None) -> None:
        """Call a function once, right before the next message; None cancels the call."""
        self._log.before_next(call)

    def run(self, limit_bytes: int) -> StreamRun | None:
        """Return the next run to send, None if there is none or the log needs time."""
        self.sent = max(self.sent, self.trimmed)
        last = self.last
        if self.sent >= last:
            return None
        part = self._log.read(self.sent + 1, last, limit_bytes)
        if part is None:
            return None
        run = self._numbered(self.sent + 1, part.last, part.elements)
        self.sent = part.last
        return run

    def tip(self) -> StreamRun:
        """Return a run that announces only the position of the stream."""
        return self._numbered(self.sent + 1, self.sent)

    def answer(self, nack: Nack, *, again: bool = False) -> list[StreamRun] | None:
        """Return the runs that answer a nack, None if the log needs time. For another incarnation there are none.

        They fill the window of the leaf, in parts: while `has_more_for` is true, call it `again`.
        """
        if nack.stream != self.stream:
            return []
        if nack.had:
            return self._continued(nack)
        if nack.first == 0:
            return self._base(nack)
        last = min(nack.last, self.sent)
        catch_up = self._catch_ups.get(nack.leaf)
        continues = again or (catch_up is not None and catch_up.continues(nack.first))
        if nack.first > last:
            return [replace(self.tip(), target=nack.leaf)]
        if catch_up is None or not continues:
            catch_up = self._catch_ups[nack.leaf] = CatchUp(nack.first)
        elif nack.last < WHOLE_STREAM:
            catch_up.limit()
        runs: list[StreamRun] = []
        for _ in range(BURST_RUNS):
            if not self.has_more_for(nack):
                break
            part = self._repair(nack, catch_up.next, last)
            if part is None:
                return runs or None
            for run in part:
                catch_up.sent(run.last, sum(one.size_bytes for one in run.elements if isinstance(one, Data)))
            runs += part
        catch_up.complete(self.sent)
        return runs

    def has_more_for(self, nack: Nack) -> bool:
        """Return whether more of an answer fits in the window of the leaf."""
        catch_up = self._catch_ups.get(nack.leaf)
        if (
            catch_up is None
            or catch_up.is_complete
            or not 0 < nack.first <= self.sent
            or nack.had
            or nack.stream != self.stream
        ):
            return False
        return catch_up.next <= min(nack.last, self.sent) and catch_up.flight_bytes < nack.limit_bytes

    def acked(self, incarnation: int, leaves: Collection[str], number: int) -> None:
        """Record that these leaves need nothing of an incarnation up to a number, and drop unneeded elements."""
        end = self._end(incarnation)
        if end is None:
            return
        if number > end:
            self.rolled_back.update(dict.fromkeys(leaves, number))
        self.acks.credit(leaves, min(number, end))
        self.trim()

    def trim(self) -> None:
        """Drop elements that all leaves of the vector have."""
        upto = self.needed_from() - 1
        if upto > self.trimmed:
            self._log.trim(upto)
            self.acks.retain(frozenset(self._appended))
            for leaf in self._catch_ups.keys() - self._appended.keys():
                del self._catch_ups[leaf]
        kept = self._change_at(self.trimmed)
        if kept > 0:
            del self._changes[:kept]

    def needed_from(self) -> int:
        """Return the first number that a leaf has not acknowledged. A leaf that has left the vector needs none."""
        last = self.last
        least = self.acks.least(self._appended.keys() & self.vector.keys())
        return (last if least is None else min(last, least)) + 1

    def _end(self, incarnation: int) -> int | None:
        """Return the last number of an incarnation, None if nothing is known of it. Cost: the vector changes."""
        if incarnation == self.stream.incarnation:
            return self.last
        found = False
        for change in self._changes:
            if found and change.incarnation != incarnation:
                return change.number - 1
            found = found or change.incarnation == incarnation
        return None

    def _continued(self, nack: Nack) -> list[StreamRun] | None:
        """Answer a leaf that had other incarnations, from the numbers after these on. The first run is its base. If the
        leaf had more than this data folder has, the folder is a copy, and the next numbers repeat ones that the leaf
        had before. An unknown incarnation is older than everything kept, or that of a newer folder: numbers that a
        limit forced out must then be assumed lost to the leaf.
        """
        ends = [(self._end(incarnation), number) for incarnation, number in nack.had]
        known = [min(end, number) for end, number in ends if end is not None]
        had = max(number for _, number in ends)
        begin = 1 + max(known, default=0)
        is_new = not known and bool(self._changes) and not self._changes[0].old  # and never had the leaf's numbers
        if is_new or any(number > (self.trimmed if end is None else end) for end, number in ends):
            self.rolled_back[nack.leaf] = had
        if begin > self.sent:
            return [replace(self._numbered(begin, begin - 1), target=nack.leaf)]
        return self._repair(nack, begin, self.sent)

    def _base(self, nack: Nack) -> list[StreamRun] | None:
        """Answer a leaf that has no base: from number 1 on, where what it cannot want is silent."""
        at = self._change_at(self.trimmed)
        if at >= 0 and self._changes[at].new.get(nack.leaf, 0) >= nack.vst:
            return self._repair(nack, 1, self.sent)
        for change in self._changes[at + 1 :]:
            if change.number > self.sent:
                break
            if change.new.get(nack.leaf, 0) >= nack.vst:
                part = self._log.read(change.number, self.sent, RUN_BYTES)
                if part is None:
                    return None
                return [StreamRun(self.stream, 1, part.last, 0, part.elements, nack.leaf, vector=NO_VECTOR)]
        return [replace(self.tip(), target=nack.leaf)]

    def _repair(self, nack: Nack, first: int, last: int) -> list[StreamRun] | None:
        """Answer with the numbers from `first` on; removed ones are silent, or lost to a leaf that lacked them."""
        runs: list[StreamRun] = []
        trimmed, leaf = self.trimmed, nack.leaf
        begin = max(first, self.acks.position(leaf) + 1)
        lost = min(trimmed, last, self._log.lost)
        if begin <= lost:
            if first < begin:
                runs.append(self._numbered(first, begin - 1))
            runs.append(replace(self._numbered(begin, lost), lost=True))
            first = lost + 1
        if first <= last:
            part = LogPart(last, ())
            if last > trimmed:
                stored = self._log.read(max(first, trimmed + 1), last, min(nack.limit_bytes, RUN_BYTES))
                if stored is None:
                    return None
                part = stored
            at = self._change_at(min(trimmed, last))
            kept = (self._changes[at],) if at >= 0 and first <= self._changes[at].number else ()
            runs.append(self._numbered(first, part.last, kept + part.elements))
        return [replace(run, target=leaf) for run in runs]

    def _change_at(self, number: int) -> int:
        """Return the place of the last vector change up to a number, -1 if there is none."""
        return bisect_right(self._changes, number, key=attrgetter("number")) - 1

    def _numbered(self, first: int, last: int, elements: tuple[Element, ...] = ()) -> StreamRun:
        """Return a run with the vector in force before it."""
        at = self._change_at(first - 1)
        if at < 0:
            return StreamRun(self.stream, first, last, 0, elements, vector=NO_VECTOR)
        change = self._changes[at]
        return StreamRun(self.stream, first, last, change.number, elements, vector=change.new)
