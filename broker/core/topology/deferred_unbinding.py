"""Deferred unbinding: the routes of a deleted queue or exchange end at once, and its bindings are removed from the
indexes later, a chunk per turn of the loop, because there may be a hundred thousand bindings.
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

    Invariant: a binding that is to be removed routes no message and is neither counted nor listed. Its deletion is in
        the journal, so the broker may stop before the removal is complete.
    Units: ``begun`` counts added bundles, ``_ended`` removed bundles, and ``shed`` the bindings removed in later turns.
    Cost: each binding takes one unit of the turn's share, and a turn removes at most CHUNK_BINDINGS.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._bundles: deque[Bundle[Exchange]] = deque()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # each with the value of `_ended` to wait for
        self._ended = 0
        self.begun = 0
        self.shed = 0

    def __len__(self) -> int:
        """Return the number of bindings to remove. Cost: O(bundles)."""
        return sum(map(len, self._bundles))

    @property
    def busy(self) -> bool:
        return bool(self._bundles)

    def part(self, bundle: Bundle[Exchange]) -> None:
        """End the routes through a bundle, because its destination is being deleted.

        A small bundle is removed at once, which ends only the routes that its keys match.
        """
        count = len(bundle)
        if count <= min(CHUNK_BINDINGS, self._deadlines.units_left):
            self._deadlines.spend(count)
            bundle.source.remove_bundle(bundle)
        else:
            bundle.source.stop_routing_to(bundle)
            self.take([bundle])

    def take(self, bundles: Iterable[Bundle[Exchange]]) -> None:
        """Add bundles whose routes have ended."""
        before = len(self._bundles)
        self._bundles.extend(bundles)
        self.begun += len(self._bundles) - before
        self._wait()

    def when_removed(self, then: Callable[[], None]) -> None:
        """Call `then` when all bundles that were added so far are removed: now, or in a later turn."""
        if self._bundles:
            self._waiting.append((self.begun, then))
        else:
            then()

    def turn(self) -> None:
        """Remove the next chunk from the indexes."""
        left = min(CHUNK_BINDINGS, max(self._deadlines.units_left, 1))
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
