"""Samples of the broker's numbers: an hour of its totals always, and of single objects while somebody looks at them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final

from broker.manage.columns import Row
from broker.manage.history import History, sample_range
from broker.manage.rates import AskedRates
from broker.tasks import Tasks

__all__ = ["Read", "Sampled", "Samples", "Watched"]

WATCHED_MAX: Final = 50  # objects with a history
UNWATCHED_S: Final = 600.0  # a history ends when nobody has asked for it for this long

Read = Callable[[], "Sequence[int] | None"]


class Watched:
    """The history of one object, such as a queue. `read` returns its numbers now, None when the object is gone."""

    __slots__ = ("asked_s", "history", "read")

    def __init__(self, history: History, read: Read, asked_s: float) -> None:
        self.history = history
        self.read = read
        self.asked_s = asked_s

    def ask(self, at_s: float) -> None:
        """Note that somebody looks."""
        self.asked_s = at_s


class Samples:
    """Takes a sample of everything that is watched at each interval.

    Shapes: `totals` is the history of the broker as a whole; `rates` knows the numbers that callers of the API read.
    Invariant: one sampling at a time; at most WATCHED_MAX objects have a history, those that were asked for last.
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
        """`names` are those of the numbers that `read_totals` returns; the first `counters` of them only grow."""
        self._interval_ms = interval_ms
        self._read_totals = read_totals
        self._clock = clock
        self._wall = wall
        self._tasks = Tasks.logged("samples.failed")
        self._watched: dict[Hashable, Watched] = {}
        self._closed = False
        self.totals = History(names, counters, interval_ms)
        self.rates = AskedRates(interval_ms / 1000, clock, wall)

    @property
    def now_ms(self) -> int:
        """The wall clock, in milliseconds since 1970."""
        return int(self._wall() * 1000)

    def watch(self, key: Hashable, names: Sequence[str], counters: int, read: Read) -> History:
        """Return the history of an object, which begins now if nobody has asked for it lately."""
        now_s = self._clock()
        watched = self._watched.get(key)
        if watched is None:
            if len(self._watched) >= WATCHED_MAX:
                del self._watched[min(self._watched, key=lambda key: self._watched[key].asked_s)]
            watched = self._watched[key] = Watched(History(names, counters, self._interval_ms), read, now_s)
            self._sample(key, watched)
        watched.ask(now_s)
        return watched.history

    def tick(self) -> None:
        """Begin to take a sample, unless the last one is still being taken."""
        if not self._closed and not self._tasks.busy:
            self._tasks.start(self.sample())

    async def sample(self) -> None:
        """Take a sample of everything."""
        self.totals.add(self.now_ms, await self._read_totals())
        last_s = self._clock() - UNWATCHED_S
        for key, watched in list(self._watched.items()):
            if watched.asked_s < last_s:
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
        """Stop sampling, for good."""
        self._closed = True
        await self._tasks.stop()


class Sampled:
    """An object of which samples can be asked for: its history begins then.

    Shapes: `names` are those of the numbers that `read` returns, the first `counters` of which only grow; `key` names
        the object among all others.
    """

    __slots__ = ("_counters", "_key", "_names", "_read")

    def __init__(self, key: Hashable, names: Sequence[str], counters: int, read: Read) -> None:
        self._key = key
        self._names = names
        self._counters = counters
        self._read = read

    def add_to(self, table: Row, kind: str, names: Sequence[str], query: Mapping[str, str], samples: Samples) -> None:
        """Add to a table the samples of some of the numbers, if the query asks for that kind of them."""
        wanted = sample_range(query, kind)
        if wanted is None:
            return
        history = samples.watch(self._key, self._names, self._counters, self._read)
        for name in names:
            table[f"{name}_details"] = history.details(name, wanted, samples.now_ms)
