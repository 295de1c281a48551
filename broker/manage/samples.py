"""Samples of the broker's numbers, and rates of counters.

The last hour of the broker's totals is always kept (see `History`). Samples of an object such as a queue are taken only
while clients request them. Rates are measured between requests of the API.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import gt
from typing import Final, NamedTuple

from broker.manage.history import History, sample_range
from broker.operations.rows import Row
from broker.tasks import Tasks

WATCHED_MAX: Final = 50  # objects with a history
UNWATCHED_S: Final = 600.0  # a history is dropped after this time without a request
FORGET_S: Final = 600.0  # an object's readings are dropped after this time without a request
COUNTERS_MAX: Final = 100_000  # objects whose last readings are kept
SWEPT_AT_ONCE: Final = 500

Read = Callable[[], "Sequence[int] | None"]


class Watched(NamedTuple):
    """The history of an object. `read` returns its current numbers, or None if the object was deleted."""

    history: History
    read: Read
    requested_s: float


class Samples:
    """Take samples of the totals and of all watched objects at an interval.

    Shapes: `totals` is the history of the whole broker; `rates` measures rates between requests of the API.
    Invariant: at most WATCHED_MAX objects have a history, those requested most recently.
    """

    def __init__(
        self,
        interval_ms: int,
        names: Sequence[str],
        counters: int,
        read_totals: Callable[[], Awaitable[Sequence[int]]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`names` name the numbers that `read_totals` returns; the first `counters` of these only grow."""
        self._interval_ms = interval_ms
        self._read_totals = read_totals
        self._clock = clock
        self._wall = wall
        self._tasks = Tasks.logged("samples.failed")
        self._watched: dict[Hashable, Watched] = {}
        self._closed = False
        self.totals = History(names, counters, interval_ms)
        self.rates = RequestedRates(interval_ms / 1000, clock, wall)

    @property
    def now_ms(self) -> int:
        """The wall clock, in milliseconds since 1970."""
        return int(self._wall() * 1000)

    def watch(self, sampled: Sampled) -> History:
        """Return the history of an object; it begins now if it was not requested recently."""
        now_s = self._clock()
        watched = self._watched.get(sampled.key)
        if watched is None:
            if len(self._watched) >= WATCHED_MAX:
                del self._watched[min(self._watched, key=lambda key: self._watched[key].requested_s)]
            history = History(sampled.names, sampled.counters, self._interval_ms)
            watched = Watched(history, sampled.read, now_s)
            self._sample(sampled.key, watched)
        self._watched[sampled.key] = watched._replace(requested_s=now_s)
        return watched.history

    def tick(self) -> None:
        """Start to take a sample, unless the previous one is in progress."""
        if not self._closed and not self._tasks.busy:
            self._tasks.start(self.sample())

    async def sample(self) -> None:
        """Take a sample of the totals and of each watched object."""
        self.totals.add(self.now_ms, await self._read_totals())
        last_s = self._clock() - UNWATCHED_S
        for key, watched in list(self._watched.items()):
            if watched.requested_s < last_s:
                del self._watched[key]
            else:
                self._sample(key, watched)
        self.rates.sweep()

    def _sample(self, key: Hashable, watched: Watched) -> None:
        values = watched.read()
        if values is None:
            self._watched.pop(key, None)
        else:
            watched.history.add(self.now_ms, values)

    async def close(self) -> None:
        self._closed = True
        await self._tasks.stop()


@dataclass(frozen=True, slots=True)
class Sampled:
    """An object whose history begins when its samples are first requested.

    Shapes: `names` name the numbers that `read` returns; the first `counters` of these only grow. `key` identifies the
        object.
    """

    key: Hashable
    names: Sequence[str]
    counters: int
    read: Read

    def add_to(self, table: Row, kind: str, names: Sequence[str], query: Mapping[str, str], samples: Samples) -> None:
        """Add the samples of the named numbers to a table, if the query requests this kind of samples."""
        wanted = sample_range(query, kind)
        if wanted is None:
            return
        history = samples.watch(self)
        for name in names:
            table[f"{name}_details"] = history.details(name, wanted, samples.now_ms)


class Reading:
    """The last two readings of an object's counters, and the time at which a change was last found.

    Units: times are in seconds; `changed_s` is on the wall clock.
    """

    __slots__ = ("at_s", "before", "before_s", "changed_s", "counts")

    def __init__(self, at_s: float, counts: Sequence[int], changed_s: float) -> None:
        self.at_s = self.before_s = at_s
        self.counts = self.before = counts
        self.changed_s = changed_s

    def read(self, counts: Sequence[int], now_s: float, wall_s: float, interval_s: float) -> None:
        """Compare the current counters with the last reading, and replace that reading if it is an interval old."""
        if counts != self.counts:
            self.changed_s = wall_s
        if now_s - self.at_s >= interval_s:
            self.before, self.before_s = self.counts, self.at_s
            self.counts, self.at_s = counts, now_s


class RequestedRates:
    """Measure rates of objects between requests.

    A rate is measured since an earlier reading, so the first request does not get rates.
    Invariant: readings of at most COUNTERS_MAX objects are kept.
    """

    def __init__(
        self, interval_s: float, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._wall = wall
        self._readings: dict[Hashable, Reading] = {}
        self._sweep: list[Hashable] = []

    def __len__(self) -> int:
        return len(self._readings)

    def of(self, key: Hashable, counts: Sequence[int], counters: int) -> list[float] | None:
        """Return the rates of an object's numbers, given their current `counts`, or None if all are 0 or unknown.

        If one of the first `counters` numbers has fallen, the key belongs to a new object, whose rates begin anew.
        Units: per second.
        """
        now_s = self._clock()
        known = self._readings.get(key)
        if known is None or now_s - known.at_s > FORGET_S or any(map(gt, known.counts[:counters], counts)):
            self.sweep(2)
            if len(self._readings) < COUNTERS_MAX:
                self._readings[key] = Reading(now_s, counts, self._wall())
            return None
        known.read(counts, now_s, self._wall(), self.interval_s)
        before = known.before
        if before == counts or now_s <= known.before_s:
            return None
        window_s = now_s - known.before_s
        return [round((count - earlier) / window_s, 2) for count, earlier in zip(counts, before, strict=True)]

    def idle_since(self, key: Hashable) -> dict[str, str]:
        """Return the column with the time at which a change was last found, or no column if there is no reading."""
        known = self._readings.get(key)
        at = None if known is None else datetime.fromtimestamp(known.changed_s, UTC)
        return {} if at is None else {"idle_since": at.isoformat(timespec="milliseconds")}

    def sweep(self, limit: int = SWEPT_AT_ONCE) -> None:
        """Check up to `limit` readings, and drop old ones. Cost: O(limit); O(readings) at the start of a round."""
        now_s = self._clock()
        if not self._sweep:
            self._sweep = list(self._readings)
        for key in self._sweep[-limit:]:
            known = self._readings.get(key)
            if known is not None and now_s - known.at_s > FORGET_S:
                del self._readings[key]
        del self._sweep[-limit:]
