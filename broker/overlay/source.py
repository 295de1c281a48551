"""A stream at the leaf that publishes it: the vector, the runs, the answers to nacks, and the interface of its log."""

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
    """The state of a leaf that survives its process.

    `time_bound` is above all virtual times ever sent, `start_points` are those of the durable bindings, and `positions`
    the numbers of the last committed delivery of each stream. `crashed` means that the process did not stop cleanly.
    """

    time_bound: int = 0
    start_points: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[StreamName, int] = field(default_factory=dict)
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class LogPart:
    """The stored elements from the requested number up to `last`; the others of this range were removed or expired."""

    last: int
    elements: tuple[Element, ...]


class StreamLog(Protocol):
    """The stored stream of a leaf: a queue whose numbers are dense.

    The numbers up to `trimmed` were removed, except for the last vector change among them, which applies to the numbers
    after it.
    """

    @property
    def durable(self) -> int:
        """The highest durable number, or 0 if there is none."""

    @property
    def trimmed(self) -> int:
        """The number up to which `trim` or a limit has removed elements."""

    @property
    def lost(self) -> int:
        """The number up to which elements may have been removed before all leaves had them; survives a restart."""

    @property
    def changes(self) -> Sequence[VectorChange]:
        """The stored vector changes in order; read once, when the stream is opened."""

    def read(self, first: int, last: int, limit_bytes: int) -> LogPart | None:
        """Return elements from `first` on, for at least one number, or None if they are being read from disk."""

    def append_vector(self, old: Vector, new: Vector, incarnation: int) -> int:
        """Append a vector change and return its number."""

    def before_next(self, call: Callable[[], None] | None) -> None:
        """Call a function once, right before the next element is numbered; None or the end of the stream cancels it."""

    def trim(self, upto: int) -> None:
        """Remove all elements up to a number, except the last vector change among them."""

    def mark_lost(self, upto: int) -> None:
        """Record durably that elements up to a number were removed before all leaves had them."""


RUN_BYTES: Final = 65_536
BURST_RUNS: Final = 16


class StreamSource:
    """One stream of this leaf.

    `vector` is V_m, the vector of the next message: for each leaf, the later of its known virtual time and its time in
    earlier vectors. An entry never falls while its leaf stays in the vector. If `vector` differs from the last vector
    change of the stream, a change must be appended before the next message.

    The data folder may be a copy that is older than the state of other brokers. So a vector change always precedes the
    first message of a process, and gives the stream a new incarnation. Leaves that received an earlier incarnation ask
    where the new one continues it.

    Invariant: a number that a leaf of the vector has not acknowledged is kept, unless a limit of the log removes it or
        the leaf is forgotten; both are recorded with `mark_lost`, so that the leaf learns of the gap.
    """

    def __init__(self, stream: StreamName, log: StreamLog) -> None:
        """Read the vector changes of the log; the incarnation of `stream` is that of this process."""
        self._log = log
        self._changes = list(log.changes)
        self._incarnation = stream.incarnation
        self.stream = stream._replace(incarnation=self._changes[-1].incarnation) if self._changes else stream
        self.rolled_back: dict[str, int] = {}  # leaf -> last number, of leaves that received more than the log contains
        self._appended: Vector = self._changes[-1].new if self._changes else NO_VECTOR
        self.vector: Vector = self._appended
        self.acks = Acknowledgements()
        self._catch_ups: dict[str, CatchUp] = {}
        self.sent = self.last

    @property
    def last(self) -> int:
        return self._log.durable

    @property
    def trimmed(self) -> int:
        return self._log.trimmed

    @property
    def is_stale(self) -> bool:
        """Whether the vector differs from the last vector change."""
        return self.vector != self._appended

    @property
    def needs_change(self) -> bool:
        """Whether a vector change must be appended before the next message."""
        return self.is_stale or not self._changes or self._changes[-1].incarnation != self._incarnation

    @property
    def has_newcomers(self) -> bool:
        """Whether the vector has a leaf that the last vector change lacks."""
        return not self.vector.keys() <= self._appended.keys()

    def reopen(self, log: StreamLog) -> None:
        """Continue with another log, after the exchange was deleted with its vhost and declared again."""
        self._log = log

    def review(self, known: Vector, has_no_interest: Callable[[str, int], bool], given_up: Collection[str]) -> None:
        """Compute the vector of the next message; append it at once if a leaf that is given up leaves the vector.

        `known` maps the interested leaves to their virtual times. `has_no_interest` returns whether a leaf announced at
        a virtual time, or later, that it has no interest. Any other leaf keeps its entry, because its announcement may
        not have arrived since a restart. Cost: O(leaves of both vectors).
        """
        vector = {leaf: max(virtual_time, self._appended.get(leaf, 0)) for leaf, virtual_time in known.items()}
        for leaf, virtual_time in self.vector.items():
            if leaf in vector:
                vector[leaf] = max(vector[leaf], virtual_time)
            elif leaf not in given_up and not has_no_interest(leaf, virtual_time):
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
        self._log.before_next(call)

    def run(self, limit_bytes: int) -> StreamRun | None:
        """Return the next run to send, or None if there is none or it must first be read from disk."""
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
        """Return an empty run that announces the position of the stream."""
        return self._numbered(self.sent + 1, self.sent)

    def answer(self, nack: Nack, *, again: bool = False) -> list[StreamRun] | None:
        """Return the runs that answer a nack (none for another incarnation), or None if the disk must be read first.

        The runs fill the window of the leaf in parts: while `has_more_for` returns true, call this method `again`.
        """
        if nack.stream != self.stream:
            return []
        if nack.former:
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
                catch_up.sent(run.last, sum(data.size_bytes for data in run.elements if isinstance(data, Data)))
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
            or nack.former
            or nack.stream != self.stream
        ):
            return False
        return catch_up.next <= min(nack.last, self.sent) and catch_up.flight_bytes < nack.limit_bytes

    def acked(self, incarnation: int, leaves: Collection[str], number: int) -> None:
        """Record that leaves have received an incarnation up to a number, and remove unneeded elements."""
        end = self._end(incarnation)
        if end is None:
            return
        if number > end:
            self.rolled_back.update(dict.fromkeys(leaves, number))
        self.acks.credit(leaves, min(number, end))
        self.trim()

    def trim(self) -> None:
        """Remove the elements that all leaves of the vector have acknowledged."""
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
        """Return the first number that a leaf of the vector has not acknowledged, or `last` + 1 if there is none."""
        last = self.last
        least = self.acks.least(self._appended.keys() & self.vector.keys())
        return (last if least is None else min(last, least)) + 1

    def _end(self, incarnation: int) -> int | None:
        """Return the last number of an incarnation, or None if it is unknown. Cost: O(vector changes)."""
        if incarnation == self.stream.incarnation:
            return self.last
        found = False
        for change in self._changes:
            if found and change.incarnation != incarnation:
                return change.number - 1
            found = found or change.incarnation == incarnation
        return None

    def _continued(self, nack: Nack) -> list[StreamRun] | None:
        """Answer a leaf that received former incarnations with the numbers after them. The first run is its new base.

        If the leaf received more than this data folder contains, the folder is a copy, and the next numbers repeat ones
        that the leaf has received. An unknown incarnation is older than everything kept, or from a newer folder; in
        both cases, numbers that a limit removed count as lost to the leaf.
        """
        ends = [(self._end(incarnation), number) for incarnation, number in nack.former]
        known = [min(end, number) for end, number in ends if end is not None]
        highest = max(number for _, number in ends)
        begin = 1 + max(known, default=0)
        is_new = not known and bool(self._changes) and not self._changes[0].old  # the log never had those numbers
        if is_new or any(number > (self.trimmed if end is None else end) for end, number in ends):
            self.rolled_back[nack.leaf] = highest
        if begin > self.sent:
            return [replace(self._numbered(begin, begin - 1), target=nack.leaf)]
        return self._repair(nack, begin, self.sent)

    def _base(self, nack: Nack) -> list[StreamRun] | None:
        """Answer a leaf without a base: numbers from 1 on, silent where it cannot want them; a tip if it wants none."""
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
        """Answer with the numbers from `first` on; removed ones are silent, or lost if they were not acknowledged."""
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
        """Return the index of the last vector change up to a number, or -1 if there is none."""
        return bisect_right(self._changes, number, key=attrgetter("number")) - 1

    def _numbered(self, first: int, last: int, elements: tuple[Element, ...] = ()) -> StreamRun:
        """Return a run with the vector in force before `first`."""
        at = self._change_at(first - 1)
        if at < 0:
            return StreamRun(self.stream, first, last, 0, elements, vector=NO_VECTOR)
        change = self._changes[at]
        return StreamRun(self.stream, first, last, change.number, elements, vector=change.new)
