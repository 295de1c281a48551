"""Deferred unbinding: the bindings of deleted queues and exchanges are removed from the indexes a chunk per turn of the
loop. A queue may have a hundred thousand bindings, and removing one from an index takes time in proportion to its key.
So a deletion ends the routes at once, and the keys are removed later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from broker.core.deadlines import Deadlines
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange

CHUNK_BINDINGS: Final = 200  # each takes about ten microseconds


class DeferredUnbinding:
    """Remove the bindings of deleted queues and exchanges from the indexes.

    Invariant: a binding in here routes nothing and is neither counted nor listed. Its deletion is already in the
        journal, so the broker may end before the removal is complete.
    Units: ``begun`` counts bundles taken over, ``_ended`` bundles removed, ``shed`` bindings removed.
    Cost: each binding takes one unit of the turn's share, and at most a chunk of them is removed in one turn.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._bundles: deque[Bundle[Exchange]] = deque()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # each with the bundles to remove first
        self._ended = 0
        self.begun = 0
        self.shed = 0

    def __len__(self) -> int:
        """Return the number of bindings left. Cost: O(pairs of an exchange and a destination)."""
        return sum(map(len, self._bundles))

    @property
    def busy(self) -> bool:
        """Whether any binding is left."""
        return bool(self._bundles)

    def part(self, bundle: Bundle[Exchange]) -> None:
        """End the routes of a bundle, because its destination is being deleted.

        A bundle that fits into the rest of the turn's share is removed at once; then only routes that its keys match
        end.
        """
        count = len(bundle)
        if count <= min(CHUNK_BINDINGS, self._deadlines.left):
            self._deadlines.spend(count)
            bundle.source.remove_bundle(bundle)
        else:
            bundle.source.stop_routing_to(bundle)
            self.take([bundle])

    def take(self, bundles: Iterable[Bundle[Exchange]]) -> None:
        """Take over bundles whose routes have ended."""
        before = len(self._bundles)
        self._bundles.extend(bundles)
        self.begun += len(self._bundles) - before
        self._wait()

    def when_removed(self, then: Callable[[], None]) -> None:
        """Call `then` when every bundle taken over so far is removed: now, or in a later turn."""
        if self._bundles:
            self._waiting.append((self.begun, then))
        else:
            then()

    def turn(self) -> None:
        """Remove the next chunk from the indexes."""
        left = min(CHUNK_BINDINGS, max(self._deadlines.left, 1))
        while self._bundles and left > 0:
            bundle = self._bundles[0]
            count = bundle.source.remove_keys(bundle, left)
            self.shed += count
            self._deadlines.spend(count)
            left -= max(count, 1)
            if not bundle:
                self._bundles.popleft()
                self._ended += 1
        self._wait()
        while self._waiting and self._waiting[0][0] <= self._ended:
            self._waiting.popleft()[1]()

    def _wait(self) -> None:
        if self._bundles:
            self._deadlines.next_turn(self, self.turn)
