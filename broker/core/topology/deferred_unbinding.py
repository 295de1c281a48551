"""Deferred unbinding: the bindings of deleted queues and exchanges leave the indexes a chunk per turn of the loop.

A queue may have a hundred thousand bindings, and to take one out of an index costs what its key costs. So a deletion
ends what leads there at once, and the keys go a chunk per loop turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.core.deadlines import Clock, Deadlines
    from broker.routing.bundle import Bundle
    from broker.routing.exchange import Exchange

__all__ = ["CHUNK_BINDINGS", "DeferredUnbinding"]

CHUNK_BINDINGS: Final = 200  # of about ten microseconds


class DeferredUnbinding:
    """Takes the bindings of what was deleted out of the indexes.

    Invariant: what is in here leads nowhere, is neither counted nor listed, and its deletion is in the journal as a
        whole; so it is all the same how far this has come when the broker ends.
    Cost: each binding takes one of the turn's share, and no more than a chunk of them goes in one turn.
    """

    __slots__ = ("_bundles", "_clock", "_deadlines", "shed")

    def __init__(self, clock: Clock, deadlines: Deadlines) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._bundles: deque[Bundle[Exchange]] = deque()
        self.shed = 0

    def __len__(self) -> int:
        """Return how many bindings are left. Cost: the pairs of an exchange and a destination."""
        return sum(map(len, self._bundles))

    @property
    def busy(self) -> bool:
        """Whether something is left."""
        return bool(self._bundles)

    def part(self, bundle: Bundle[Exchange]) -> None:
        """End what a bundle leads to, because its destination is being deleted.

        One that fits in what is left of the turn's share is gone at once: then only the routes that its keys match end.
        """
        count = len(bundle)
        if count <= min(CHUNK_BINDINGS, self._deadlines.left):
            self._deadlines.spend(count)
            bundle.source.sever(bundle)
        else:
            bundle.source.part(bundle)
            self.take([bundle])

    def take(self, bundles: Iterable[Bundle[Exchange]]) -> None:
        """Take over bundles that were parted from, or whose exchange has ended."""
        self._bundles.extend(bundles)
        self._wait()

    def turn(self) -> None:
        """Take the next chunk out of the indexes."""
        left = min(CHUNK_BINDINGS, max(self._deadlines.left, 1))
        while self._bundles and left > 0:
            bundle = self._bundles[0]
            count = bundle.source.shed(bundle, left)
            self.shed += count
            self._deadlines.spend(count)
            left -= max(count, 1)
            if not bundle:
                self._bundles.popleft()
        self._wait()

    def _wait(self) -> None:
        if self._bundles:
            self._deadlines.set(self, self._clock.now_ms, self.turn)
