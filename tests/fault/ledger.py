"""Records confirmed publishes and deliveries over all restarts of a broker, and checks them.

The terms are Jepsen's: lost (confirmed but never delivered), unexpected (delivered but never published), duplicates.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


def body_of(identity: str, size_bytes: int) -> bytes:
    """Return the body of a message: its identity and padding derived from it."""
    head = identity.encode() + b" "
    pattern = hashlib.blake2b(head, digest_size=32).digest()
    return head + (pattern * (size_bytes // len(pattern) + 1))[: max(0, size_bytes - len(head))]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery."""

    identity: str
    redelivered: bool
    life: int


@dataclass
class Verdict:
    """The result of a check. All lists must be empty."""

    lost: list[str]
    unexpected: list[str]
    twice_fresh: list[str]
    reordered: list[str]
    damaged: list[str]
    duplicates: int
    recovered: int
    """The number of messages delivered although never confirmed, which is allowed."""

    def faults(self) -> dict[str, list[str]]:
        """Return the kinds of fault that occurred, with the first few cases of each."""
        kinds = ("lost", "unexpected", "twice_fresh", "reordered", "damaged")
        return {kind: getattr(self, kind)[:5] for kind in kinds if getattr(self, kind)}


@dataclass
class Ledger:
    """A record of attempts, confirms and deliveries.

    Invariant: an identity is in `attempted` before its bytes are sent, and in `confirmed` after its confirm arrived.

    Shapes: ``attempted`` maps identities, which are "publisher:number", to target queues.
    """

    attempted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    drained: dict[str, list[str]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    life: int = 0

    def attempt(self, identity: str, size_bytes: int, queues: tuple[str, ...]) -> bytes:
        """Record a message before it is published, and return its body."""
        with self.lock:
            self.attempted[identity] = queues
            self.sizes[identity] = size_bytes
        return body_of(identity, size_bytes)

    def confirm(self, identities: list[str]) -> None:
        """Record a confirm."""
        with self.lock:
            self.confirmed.update(identities)

    def deliver(self, queue: str, body: bytes, *, redelivered: bool, drained: bool = False) -> None:
        """Record a delivery; with `drained`, to the only consumer of a queue to which no client publishes any more."""
        identity = body.split(b" ", 1)[0].decode(errors="replace")
        with self.lock:
            if body != body_of(identity, self.sizes.get(identity, 0)):
                self.damaged.append(f"{queue}: {identity} of {len(body)} bytes")
            self.deliveries.setdefault(queue, []).append(Delivery(identity, redelivered, self.life))
            if drained:
                self.drained.setdefault(queue, []).append(identity)

    def verdict(self, queues: tuple[str, ...]) -> Verdict:
        """Check the deliveries of the queues, all of which must be drained."""
        verdict = Verdict([], [], [], [], list(self.damaged), 0, 0)
        for queue in queues:
            wanted = {identity for identity, targets in self.attempted.items() if queue in targets}
            seen = Counter(delivery.identity for delivery in self.deliveries.get(queue, []))
            confirmed = wanted & self.confirmed
            verdict.lost += [f"{queue}: {identity}" for identity in sorted(confirmed - seen.keys())]
            verdict.unexpected += [f"{queue}: {identity}" for identity in sorted(seen.keys() - wanted)]
            verdict.duplicates += sum(count - 1 for count in seen.values())
            verdict.recovered += len((seen.keys() & wanted) - self.confirmed)
            verdict.twice_fresh += self._twice_fresh(queue)
            verdict.reordered += self._reordered(queue, self.drained.get(queue, []))
        return verdict

    def _twice_fresh(self, queue: str) -> list[str]:
        """Return the messages that were delivered again without the redelivered flag."""
        seen: set[str] = set()
        wrong = []
        for delivery in self.deliveries.get(queue, []):
            if delivery.identity in seen and not delivery.redelivered:
                wrong.append(f"{queue}: {delivery.identity} in life {delivery.life}")
            seen.add(delivery.identity)
        return wrong

    def _reordered(self, queue: str, drained: list[str]) -> list[str]:
        """Return the messages that were drained after a later one of the same publisher."""
        last: dict[str, int] = {}
        wrong = []
        for identity in drained:
            publisher, _, number = identity.partition(":")
            if int(number or -1) <= last.get(publisher, -1):
                wrong.append(f"{queue}: {identity} after {last[publisher]}")
            last[publisher] = int(number or -1)
        return wrong


def counts(ledger: Ledger) -> Mapping[str, int]:
    """Return the figures of a run, for its report."""
    return {
        "attempted": len(ledger.attempted),
        "confirmed": len(ledger.confirmed),
        "deliveries": sum(map(len, ledger.deliveries.values())),
    }
