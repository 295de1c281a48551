"""The verdict: the expected and the received messages of every queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from demo.ledger import FRESH_MASK, REDELIVERED_SHIFT, Ledger
from demo.matcher import matched
from demo.plan import QueuePlan


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """The expected and received flights of one queue, or of several together, counted as distinct flights.

    `duplicates` are all copies beyond the first; `unexplained` are the duplicates without a reason: the copy was not
    flagged as redelivered after a kill, and the flight had not been published again.
    """

    expected: int
    got: int
    missing: int
    missing_confirmed: int
    unexpected: int
    duplicates: int
    unexplained: int
    left: int

    @property
    def holds(self) -> bool:
        """Return whether the queue received exactly its flights, and is empty now."""
        return not (self.missing or self.unexpected or self.unexplained or self.left)


def judge(
    ledger: Ledger, plan: Sequence[QueuePlan], keys: Sequence[str], left: Sequence[int], killed: bool
) -> list[QueueVerdict]:
    """Return the verdict on every queue.

    Cost: one pass over a byte for each queue and flight.
    """
    distinct = sorted(set(keys))
    numbers = {key: number for number, key in enumerate(distinct)}
    key_of_row = np.fromiter((numbers[key] for key in keys), dtype=np.intp, count=len(keys))
    attempts = np.frombuffer(ledger.attempts, dtype=np.uint8)
    confirmed = np.frombuffer(ledger.confirmed, dtype=np.uint8).astype(bool)
    verdicts: list[QueueVerdict] = []
    for index, queue in enumerate(plan):
        expected = np.array(matched(queue.binding_keys, distinct), dtype=bool)[key_of_row]
        cells = np.frombuffer(ledger.copies(index), dtype=np.uint8)
        fresh, redelivered = cells & FRESH_MASK, cells >> REDELIVERED_SHIFT
        got = cells > 0
        copies = fresh + redelivered
        # A flight that was published n times may arrive n times unflagged. A flagged copy requires a killed broker.
        without_reason = np.maximum(fresh, attempts) - attempts
        if not killed:
            without_reason = without_reason + redelivered
        missing = expected & ~got
        verdicts.append(
            QueueVerdict(
                expected=_count(expected),
                got=_count(got),
                missing=_count(missing),
                missing_confirmed=_count(missing & confirmed),
                unexpected=_count(got & ~expected),
                duplicates=int(copies.sum(dtype=np.int64)) - _count(got),
                unexplained=int(without_reason.sum(dtype=np.int64)),
                left=left[index],
            )
        )
    return verdicts


def _count(mask: np.typing.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(mask))


def total(verdicts: Iterable[QueueVerdict]) -> QueueVerdict:
    """Return the sum of several verdicts."""
    rows = [
        (v.expected, v.got, v.missing, v.missing_confirmed, v.unexpected, v.duplicates, v.unexplained, v.left)
        for v in verdicts
    ]
    return QueueVerdict(*(sum(column) for column in zip(*rows, strict=True)))


def by_kind(plan: Sequence[QueuePlan], verdicts: Sequence[QueueVerdict]) -> dict[str, tuple[int, QueueVerdict]]:
    """Return for each kind of pattern the number of its queues and the sum of their verdicts."""
    kinds: dict[str, list[QueueVerdict]] = {}
    for queue, verdict in zip(plan, verdicts, strict=True):
        kinds.setdefault(queue.kind, []).append(verdict)
    return {kind: (len(members), total(members)) for kind, members in kinds.items()}
