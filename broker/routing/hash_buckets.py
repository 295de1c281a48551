"""Consistent hashing: which of several weighted destinations a value belongs to."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from math import log
from typing import Any, Final

from broker.routing.destinations import count_down, count_up

BUCKETS: Final = 65536
MASK: Final = 2**64 - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
_LARGEST_DIGEST: Final = 2.0**64


class HashBuckets:
    """Distribute values over destinations in proportion to their weights. A value is in one of 65536 buckets, and a
    bucket belongs to the destination with the best lot for it; the lots depend only on the bucket and the destination.
    So a new destination takes over its share and no more, a removed one leaves its share to the others, and neither the
    order of bindings nor a restart changes anything. A destination bound more than once has the greatest of its
    weights.

    Cost: pick is one look-up for a bucket seen since the last change, else one lot for each destination.
    Source: weighted rendezvous hashing (Thaler and Ravishankar 1998; Schindelhauer and Schomaker 2005).
    """

    def __init__(self) -> None:
        self._weights: dict[Any, dict[int, int]] = {}
        self._draws: dict[Any, tuple[int, int]] = {}  # seed and weight in force
        self._owners: dict[int, Any] = {}

    def add(self, destination: Hashable, identity: str, weight: int) -> bool:
        """Count one more binding of a destination and return whether that changed its share.

        Shapes: the identity is what stays the same when the broker starts again.
        """
        weights = self._weights.setdefault(destination, {})
        count_up(weights, weight)
        known = self._draws.get(destination)
        if known is not None and known[1] >= weight:
            return False
        self._draws[destination] = (digest(identity), weight)
        self._owners.clear()
        return True

    def remove(self, destination: Hashable, weight: int) -> bool:
        """Count one binding of a destination less and return whether that changed its share.

        Raises: KeyError if there is none with this weight.
        """
        weights = self._weights[destination]
        count_down(weights, weight)
        seed, in_force = self._draws[destination]
        if in_force in weights:
            return False
        if weights:
            self._draws[destination] = (seed, max(weights))
        else:
            del self._weights[destination]
            del self._draws[destination]
        self._owners.clear()
        return True

    def forget(self, destination: Hashable) -> None:
        """Remove a destination with all its bindings. Raises: KeyError if it has none."""
        del self._weights[destination]
        del self._draws[destination]
        self._owners.clear()

    def pick(self, value: str) -> Any | None:
        """Return the destination of a value; None if there is no destination."""
        draws = self._draws
        if not draws:
            return None
        bucket = digest(value) % BUCKETS
        owner = self._owners.get(bucket)
        if owner is None:
            mark = bucket * GOLDEN
            owner = min(draws, key=lambda destination: _lot(mark, *draws[destination]))
            self._owners[bucket] = owner
        return owner


def digest(value: str) -> int:
    """Return 64 bits of a text that are the same in every process."""
    return int.from_bytes(blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _lot(mark: int, seed: int, weight: int) -> tuple[float, int]:
    """Return an exponentially distributed draw with the weight as its rate; the least of several wins."""
    return -log((mixed((seed + mark) & MASK) + 1) / _LARGEST_DIGEST) / weight, seed


def mixed(bits: int) -> int:
    """Return 64 bits that look random, from 64 that need not: the finaliser of splitmix64."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)
