"""Garbage collection of the broker's process: what stays is frozen, so that every collection is short."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["VISITED_MAX", "Collector"]

INTERVAL_S: Final = 1.0
YOUNG: Final = 5000  # new objects per collection of generation 0: by then most messages of a turn have been freed
ROUNDS: Final = 1  # after this many collections of generation 0, one of generation 1 follows
NEVER: Final = 1 << 30
OLD: Final = 2  # collections of generation 1 after which everything is frozen at once
VISITED_MAX: Final = YOUNG * (ROUNDS + 3) * OLD
"""Objects that a collection visits at most, in less than 20 ms: generation 2 holds less than OLD times generation 1."""
REFERENCES_MAX: Final = 200_000  # in old containers: a collection takes 30 ns for each
CONTAINERS: Final = frozenset({list, tuple, dict, set, deque})


class Collector:
    """Move long-lived objects to the permanent generation (`gc.freeze`), in portions.

    A full collection would visit every object: 70 ms in a fresh broker, a second with 100,000 bindings. Frozen objects
    are not visited, but are still freed with their last reference. Objects of clients leave no reference cycles, so
    nothing is ever unfrozen. The cycles of failures and of asyncio are found while they are young. Once a second the
    objects that have become old since are visited once more, and frozen. If there are many, because a topology has
    grown, they are frozen at once. Python begins a collection when allocated objects outnumber freed ones by a limit.
    An import frees one for each new one, and generation 0 would grow to 100,000 objects. So `collect_young` counts
    those, too.
    Invariant: a collection visits at most VISITED_MAX objects, and those created since the last two calls of
        `collect_young`; `collect_old` begins none that would follow more than REFERENCES_MAX references.
    Source: the gc module's freeze(), from Instagram's web servers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._alarm: asyncio.TimerHandle | None = None
        self._aged = 0  # collections of generation 1 since the last freeze
        self._collects = False  # there were collections since the last `collect_young`

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disable collections during a recovery, whose objects stay and are frozen without being visited.

        Otherwise the first client would wait for a collection that finds about a megabyte.
        """
        gc.disable()
        try:
            yield
            gc.freeze()  # all of it is in generation 0, and the next allocation would visit it
        finally:
            gc.enable()

    def start(self) -> None:
        """Freeze the objects of the start, and check once a second from then on."""
        gc.set_threshold(YOUNG, ROUNDS, NEVER)
        gc.callbacks.append(self._collected)
        self._freeze()
        self._wait()

    def close(self) -> None:
        """Stop checking. All stays frozen: the process ends, which would wait a second for a collection of it."""
        if self._alarm is not None:
            self._alarm.cancel()
            gc.callbacks.remove(self._collected)
        self._freeze()

    def collect_old(self) -> None:
        """Collect the objects that have become old since the last time, and freeze the others.

        If they have very many references, as in an import, all are frozen.
        """
        if self._aged:
            held = sum([len(one) for one in gc.get_objects() if type(one) in CONTAINERS])
            if held > REFERENCES_MAX:
                self._freeze()
            else:
                self.collect()

    def collect_young(self) -> None:
        """Collect young objects if Python did not and they are many. Cost: some ten nanoseconds for each."""
        if not self._collects and len(gc.get_objects(generation=0)) > YOUNG:
            generation = int(gc.get_count()[1] > ROUNDS)  # that Python would choose
            gc.collect(generation)
            if generation:
                self._freeze()
        self._collects = False

    def collect(self) -> None:
        """Collect objects that are not frozen, and freeze the survivors. It also frees the tuples that Python keeps for
        reuse.
        """
        gc.collect()
        self._freeze()

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        """Count collections of generation 1; Python calls it before and after each, in any thread."""
        self._collects = True
        if phase == "stop" and info["generation"] == 1:
            self._aged += 1
            if self._aged == OLD:
                self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        self._aged = 0

    def _wait(self) -> None:
        self._alarm = self._loop.call_later(INTERVAL_S, self._ring)

    def _ring(self) -> None:
        self.collect_old()
        self._wait()
