"""The seal view: the slot files, gaps and cursors that result from the lines of a seal log."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, TypedDict

from broker.slot_files.seal_log import (
    FORMAT,
    BadSealLine,
    Cursor,
    Gap,
    Line,
    NewerSealLog,
    QueueKey,
    Released,
    Seal,
    encode_line,
    fields_of,
)

STARTS_MAX: Final = 10_000  # only the newest runs are kept
GAPS_MAX: Final = 1000  # only the newest gaps are kept


class SealStarts:
    """Which run of the broker wrote which seals. The incarnation of a seal before the first known run is empty."""

    def __init__(self) -> None:
        self._starts: list[tuple[int, str]] = []  # the first seal and the incarnation of each run, ascending

    def __len__(self) -> int:
        return len(self._starts)

    def begin(self, seal: int, incarnation: str) -> None:
        """Record the run that wrote a seal, unless it also wrote the previous one."""
        if self.of(seal) != incarnation:
            self._starts.append((seal, incarnation))
            del self._starts[:-STARTS_MAX]

    def of(self, seal: int) -> str:
        """Return the incarnation of the run that wrote a seal."""
        at = bisect_right(self._starts, seal, key=itemgetter(0))
        return self._starts[at - 1][1] if at else ""

    def last_of(self, incarnation: str, last_seal: int) -> int:
        """Return the last seal that a run wrote, or 0 if it wrote none; `last_seal` is the last of all runs."""
        starts = [(1, ""), *self._starts, (last_seal + 1, "")]
        return max((starts[at + 1][0] - 1 for at in range(len(starts) - 1) if starts[at][1] == incarnation), default=0)

    def rows(self) -> list[dict[str, Any]]:
        """Return the fields of the incarnation lines."""
        return [{"seal": seal, "incarnation": incarnation} for seal, incarnation in list(self._starts)]


class SealView:
    """The state that results from the lines of a seal log. One thread changes it; other threads may read it in
    the meantime, and see the state before or after a change.
    Invariant: seals ascend from line to line.
    """

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.store = ""
        self.last_seal = 0
        self.lines = 0  # in the file, obsolete ones included
        self.released: dict[QueueKey, Released] = {}
        self._seals: dict[int, Seal] = {}
        self._order: list[int] = []  # the seal numbers, ascending; the files of some are removed
        self._by_queue: dict[QueueKey, deque[Seal]] = {}
        self.starts = SealStarts()
        self._gaps: dict[int, Gap] = {}
        self._cursors: dict[tuple[str, str, str], Cursor] = {}
        for line in lines:
            self.fold(line)

    # -- look-ups -----------------------------------------------------------------------------------------------------

    @property
    def seals(self) -> list[Seal]:
        """The slot files that exist, in ascending order."""
        return list(self._seals.values())

    @property
    def gaps(self) -> list[Gap]:
        """The newest 1,000 gaps at most, oldest first."""
        return list(self._gaps.values())

    @property
    def cursors(self) -> list[Cursor]:
        """The cursors, oldest first."""
        return list(self._cursors.values())

    @property
    def queues(self) -> list[QueueKey]:
        """The queues that have slot files, sorted."""
        return sorted(self._by_queue)

    def diverged(self, seal: int, incarnation: str | None) -> bool:
        """Return whether a seal is not in this history, because a backup was restored. Shapes: `incarnation` is that of
        the run of the broker that wrote the seal; None means any run.
        """
        return seal > self.last_seal or (seal > 0 and incarnation not in (None, self.starts.of(seal)))

    def last_shared(self, seal: int, incarnation: str | None) -> int:
        """Return the last seal up to `seal` that a run (any for None) wrote in this history, or 0 if it wrote none."""
        return min(seal, self.last_seal if incarnation is None else self.starts.last_of(incarnation, self.last_seal))

    def seal(self, number: int) -> Seal | None:
        """Return the seal with that number, or None if its file does not exist."""
        return self._seals.get(number)

    def cursor(self, name: str, vhost: str, tap: str) -> Cursor | None:
        """Return a cursor, or None if it does not exist."""
        return self._cursors.get((name, vhost, tap))

    def cursors_of(self, vhost: str, tap: str) -> list[Cursor]:
        """Return the cursors of a tap."""
        return [cursor for cursor in self.cursors if (cursor.vhost, cursor.tap) == (vhost, tap)]

    @property
    def taps(self) -> set[tuple[str, str]]:
        """The vhost and name of each tap that has slot files. Cost: O(queues)."""
        return set(self.taps_of_queues.values())

    @property
    def taps_of_queues(self) -> dict[QueueKey, tuple[str, str]]:
        """The vhost and name of the tap of each queue that has slot files. Cost: O(queues)."""
        return {key: (mine[0].vhost, mine[0].queue) for key, mine in list(self._by_queue.items()) if mine}

    def of_tap(self, vhost: str, tap: str) -> list[Seal]:
        """Return the seals of a tap, in ascending order. Cost: O(seals)."""
        return [seal for seal in self.seals if (seal.vhost, seal.queue) == (vhost, tap)]

    def of_queue(self, key: QueueKey) -> list[Seal]:
        """Return the seals of one queue, in ascending order."""
        return list(self._by_queue.get(key, ()))

    def ends(self, vhost: str) -> dict[int, int]:
        """Map each queue number of a vhost to the id after the last message in its slot files, even removed ones."""
        found: dict[int, int] = {}
        known: list[Seal | Gap | Released] = [*self.seals, *self.gaps, *list(self.released.values())]
        for one in known:
            if one.vhost == vhost:
                found[one.number] = max(one.end, found.get(one.number, 0))
        return found

    def after(self, seal: int, *, queues: Collection[QueueKey] | None = None, limit: int | None = None) -> list[Seal]:
        """Return up to `limit` seals after a reader's seal, in ascending order, of all queues or of `queues`."""
        order = self._order
        found: list[Seal] = []
        for at in range(bisect_right(order, seal), len(order)):
            if len(found) == limit:
                break
            one = self._seals.get(order[at])
            if one is not None and (queues is None or one.key in queues):
                found.append(one)
        return found

    def lost(self, after: int, *, queues: Collection[QueueKey] | None = None) -> list[Gap]:
        """Return the gaps after a reader's seal, of all queues or of `queues`.

        Shapes: if files of a queue after the reader's seal were released, but no gap among them is kept, one gap up to
            the released seal stands for them; its ids and counts are 0.
        """
        found = [gap for gap in self.gaps if gap.seal > after and (queues is None or gap.key in queues)]
        released = list(self.released.items())
        ends = {key: one.seal for key, one in released}
        noted = {gap.key for gap in found if gap.seal <= ends.get(gap.key, 0)}
        for key, one in released:
            if one.seal > after and key not in noted and (queues is None or key in queues):
                found.append(one.gap())
        return sorted(found, key=lambda gap: gap.seal)

    def live_lines(self) -> int:
        """Return how many lines `to_lines` would yield."""
        return 1 + len(self.starts) + len(self._seals) + len(self._gaps) + len(self.released) + len(self._cursors)

    def rewritten(self) -> None:
        """Record that the file contains only the live lines."""
        self.lines = self.live_lines()

    def to_lines(self) -> Iterator[bytes]:
        """Yield the lines that result in this state."""
        yield encode_line("store", {"format": FORMAT, "store": self.store, "last_seal": self.last_seal})
        for start in self.starts.rows():
            yield encode_line("incarnation", start)
        for facts in (self.released, self._gaps, self._seals, self._cursors):
            for fact in list(facts.values()):
                yield encode_line(fact.kind, fact.to_json())

    # -- changes ------------------------------------------------------------------------------------------------------

    def fold(self, line: Line) -> None:
        """Apply one line; skip kinds of a later version. Raises: BadSealLine."""
        kind = line.get("k")
        if kind == "seal":
            self._fold_seal(Seal.from_json(line))
        elif kind == "gap":
            self._fold_gap(Gap.from_json(line))
        elif kind == "released":
            self._fold_released(Released.from_json(line))
        elif kind == "cursor":
            cursor = Cursor.from_json(line)
            self._cursors[cursor.key] = cursor
        elif kind == "cursor_removed":
            name, vhost, tap = fields_of(line, name="str", vhost="str", tap="str")
            self._cursors.pop((name, vhost, tap), None)
        elif kind == "incarnation":
            self.starts.begin(*fields_of(line, seal="int", incarnation="str"))
        elif kind == "store":
            number = line.get("format")
            if isinstance(number, int) and number > FORMAT:
                raise NewerSealLog(number)
            if not isinstance(number, int) or number < 1:
                raise BadSealLine("it does not say its format")
            self.store, last_seal = fields_of({"last_seal": 0, **line}, store="str", last_seal="int")
            self.last_seal = max(self.last_seal, last_seal)
        self.lines += 1

    def _fold_seal(self, seal: Seal) -> None:
        if self._order and seal.seal <= self._order[-1]:
            raise BadSealLine(f"seal {seal.seal} comes after seal {self._order[-1]}")
        self.starts.begin(seal.seal, seal.incarnation)
        self._seals[seal.seal] = seal
        self._by_queue.setdefault(seal.key, deque()).append(seal)
        self._order.append(seal.seal)
        self.last_seal = max(self.last_seal, seal.seal)

    def _fold_gap(self, gap: Gap) -> None:
        self._gaps[gap.seal] = gap
        if len(self._gaps) > GAPS_MAX:
            del self._gaps[next(iter(self._gaps))]
        self._drop(gap.key, gap.seal)

    def _fold_released(self, released: Released) -> None:
        key = released.key
        before = self.released.get(key)
        if before is None or before.seal < released.seal:
            self.released[key] = released
        mine = self._by_queue.get(key)
        while mine and mine[0].seal <= released.seal:
            self._drop(key, mine[0].seal)

    def _drop(self, key: QueueKey, seal: int) -> None:
        gone = self._seals.pop(seal, None)
        if gone is None:
            return
        mine = self._by_queue[key]
        mine.remove(gone)  # usually the first
        if not mine:
            del self._by_queue[key]
        if len(self._order) > 2 * len(self._seals) + 100:
            # The last number stays, so that the next seal can be compared with it.
            self._order = [one for one in self._order[:-1] if one in self._seals] + self._order[-1:]


class Lag(TypedDict):
    """The lag of one reader. Units: ``lag_s`` is the age of the oldest message not yet passed, or 0."""

    lag_slots: int
    lag_messages: int
    lag_bytes: int
    lag_s: float


class LagTable:
    """The slot files of a tap, ascending, with running sums, so that the lag of a cursor takes one binary search."""

    def __init__(self, seals: Sequence[Seal]) -> None:
        self._seals = seals
        self._numbers = [seal.seal for seal in seals]
        self._messages = [0, *accumulate(seal.count for seal in seals)]  # in the first n files
        self._bytes = [0, *accumulate(seal.bytes for seal in seals)]

    def behind(self, seal: int, now_ms: int) -> Lag:
        """Return the lag of a reader that has passed a seal. Units: `now_ms` is the wall-clock time."""
        passed = bisect_right(self._numbers, seal)
        return {
            "lag_slots": len(self._seals) - passed,
            "lag_messages": self._messages[-1] - self._messages[passed],
            "lag_bytes": self._bytes[-1] - self._bytes[passed],
            "lag_s": self._age_ms(passed, now_ms) / 1000,
        }

    def _age_ms(self, passed: int, now_ms: int) -> int:
        """Return the age of the first message after this many files, unaffected by corrections of the clock."""
        if passed == len(self._seals):
            return 0
        oldest, newest = self._seals[passed], self._seals[-1]
        return max(0, now_ms + newest.ahead_ms - oldest.first_ts_ms - oldest.ahead_ms)
