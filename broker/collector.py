"""Garbage collection of the broker's process: long-lived objects are frozen, so that every collection is short."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

INTERVAL_S: Final = 1.0
YOUNG: Final = 5000  # new objects per collection of generation 0: by then most messages of a turn have been freed
ROUNDS: Final = 1  # after this many collections of generation 0, one of generation 1 follows
NEVER: Final = 1 << 30
AGED_MAX: Final = 2  # collections of generation 1 after which everything is frozen at once
VISITED_MAX: Final = YOUNG * (ROUNDS + 3) * AGED_MAX
"""A collection visits hardly more objects than this, in less than 20 ms."""
YOUNG_MAX: Final = VISITED_MAX // 2  # objects of generation 0 that a collection may visit, beside older ones
REFERENCES_MAX: Final = 200_000  # references in containers that are not frozen; a collection takes 30 ns for each
CONTAINERS: Final = frozenset({list, tuple, dict, set, deque})


class Collector:
    """Move long-lived objects to the permanent generation (`gc.freeze`), so that later collections skip them.

    A full collection would visit every object: 70 ms in a fresh broker, a second with 100,000 bindings. Frozen objects
    are not visited, but are still freed with their last reference. Objects of clients do not leave reference cycles,
    so nothing is ever unfrozen. Cycles of exceptions and of asyncio are collected while they are young. Once a second
    the objects that have aged since the last check are collected, and the survivors frozen. If there are very many,
    because a topology has grown, they are frozen without a collection.

    Python starts a collection when allocations outnumber deallocations by a threshold. An import of definitions frees
    as many older objects as it allocates, so generation 0 would grow to 100,000 objects without `collect_young`.
    Invariant: a collection visits at most VISITED_MAX objects, plus those created since the last but one call of
        `collect_young`; `collect_old` starts no collection that would follow over REFERENCES_MAX references.
    Source: the gc module's freeze(), from Instagram's web servers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._aged = 0  # collections of generation 1 since the last freeze
        self._has_collected = False  # whether Python has collected since the last call of `collect_young`

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disable collections during a recovery, and freeze its objects without visiting them.

        Otherwise the first client would wait for a collection that frees about a megabyte.
        """
        gc.disable()
        try:
            yield
            gc.freeze()  # otherwise the next allocation would start a collection of all new objects
        finally:
            gc.enable()

    def start(self) -> None:
        """Freeze all objects that exist at startup, and check for new ones once a second."""
        gc.set_threshold(YOUNG, ROUNDS, NEVER)
        gc.callbacks.append(self._collected)
        self._freeze()
        self._schedule()

    def close(self) -> None:
        """Stop checking, and freeze everything: otherwise Python's collection at exit would take a second."""
        if self._timer is not None:
            self._timer.cancel()
            gc.callbacks.remove(self._collected)
        self._freeze()

    def collect_old(self) -> None:
        """Collect the objects that have aged since the last call, and freeze the survivors.

        If they are too many or contain too many references, as during an import, freeze them without a collection.
        """
        if self._aged:
            objects = gc.get_objects()
            references = sum([len(container) for container in objects if type(container) in CONTAINERS])
            is_long = len(objects) > VISITED_MAX or references > REFERENCES_MAX
            del objects
            if is_long:
                self._freeze()
            else:
                self.collect()

    def collect_young(self) -> None:
        """Collect young objects if there are many; if there are very many, freeze them without a collection.
        Cost: about ten nanoseconds per object.
        """
        young = 0 if self._has_collected else len(gc.get_objects(generation=0))
        if young > YOUNG_MAX:
            self._freeze()
        elif young > YOUNG:
            gc.collect(1)
            self._freeze()
        self._has_collected = False

    def collect(self) -> None:
        """Collect objects that are not frozen, and freeze the survivors. This also empties Python's free lists."""
        gc.collect()
        self._freeze()

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        """Count collections of generation 1, and freeze at AGED_MAX. Python calls this around every collection."""
        self._has_collected = True
        if phase == "stop" and info["generation"] == 1:
            self._aged += 1
            if self._aged == AGED_MAX:
                self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        self._aged = 0

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self._check)

    def _check(self) -> None:
        self.collect_old()
        self._schedule()
