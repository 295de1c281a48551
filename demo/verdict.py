"""The expected and the received messages of every queue, and the table, the rates and the failures at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from demo.display import Watch
from demo.ledger import FRESH_MASK, REDELIVERED_SHIFT, Count, Ledger
from demo.plan import QueuePlan, matched

COLUMNS = ("queues", "expected", "got", "missing", "unexpected", "duplicates", "unexplained", "left")
WORST_QUEUES = 10


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """The expected and received flights of one queue, or of several together, counted as distinct flights.

    `duplicates` are all copies beyond the first; `unexplained` are the duplicates without a reason: the copy was not
    flagged as redelivered after a kill, and the flight had not been published again.
    """

    expected: int
    got: int
    missing: int
    unexpected: int
    duplicates: int
    unexplained: int
    left: int
    missing_confirmed: int

    @property
    def holds(self) -> bool:
        """Return whether the queue received exactly its flights, and is empty now."""
        return not (self.missing or self.unexpected or self.unexplained or self.left)


def judge(
    ledger: Ledger, plan: Sequence[QueuePlan], keys: Sequence[str], left: Sequence[int], killed: bool
) -> list[QueueVerdict]:
    """Return the verdict on every queue. Cost: one pass over a byte for each queue and flight."""
    distinct, key_of_row = np.unique(keys, return_inverse=True)
    attempts = np.frombuffer(ledger.attempts, dtype=np.uint8)
    confirmed = np.frombuffer(ledger.confirmed, dtype=np.uint8).astype(bool)
    verdicts: list[QueueVerdict] = []
    for index, queue in enumerate(plan):
        expected = np.array(matched(queue.binding_keys, distinct.tolist()), dtype=bool)[key_of_row]
        cells = np.frombuffer(ledger.copies(index), dtype=np.uint8)
        fresh, redelivered = cells & FRESH_MASK, cells >> REDELIVERED_SHIFT
        got = cells > 0
        # A flight that was published n times may arrive n times unflagged. A flagged copy requires a killed broker.
        unexplained = np.maximum(fresh, attempts) - attempts + (0 if killed else redelivered)
        missing = expected & ~got
        surplus = (fresh + redelivered).sum(dtype=np.int64) - got.sum()
        numbers = (expected.sum(), got.sum(), missing.sum(), (got & ~expected).sum(), surplus)
        sums = (*numbers, unexplained.sum(dtype=np.int64), left[index], (missing & confirmed).sum())
        verdicts.append(QueueVerdict(*map(int, sums)))
    return verdicts


def total(verdicts: Iterable[QueueVerdict]) -> QueueVerdict:
    """Return the sum of several verdicts."""
    return QueueVerdict(*map(sum, zip(*map(astuple, verdicts), strict=True)))


def _table(plan: Sequence[QueuePlan], verdicts: Sequence[QueueVerdict], plain: bool) -> Table:
    """Return the table, with a row for each kind of pattern and one for all."""
    table = Table("pattern", box=box.SIMPLE if plain else box.HEAVY_HEAD, show_footer=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for kind in (*dict.fromkeys(queue.kind for queue in plan), "all"):
        members = [one for queue, one in zip(plan, verdicts, strict=True) if kind in (queue.kind, "all")]
        cells = [kind, *(f"{number:,}" for number in (len(members), *astuple(total(members))[:-1]))]
        if kind != "all":
            table.add_row(*cells)
    for footed, cell in zip(table.columns, cells, strict=True):
        footed.footer = cell
    return table


def show_report(
    plan: Sequence[QueuePlan], verdicts: Sequence[QueueVerdict], ledger: Ledger, watch: Watch,
    stopped: float | str | None, plain: bool,
) -> bool:  # fmt: skip
    """Print the table, the rates and the verdict; return whether the broker kept its guarantees.

    `stopped` is how many seconds the stop took, the error of the stop, or None where nothing was stopped.
    """
    published, resent, confirmed, refused, returned, delivered, _, altered = map(ledger.total, Count)
    print()
    Console(width=120 if plain else None).print(_table(plan, verdicts, plain))
    began_s = watch.began_s or watch.moved_s
    publishing_s, draining_s = (watch.published_s or watch.moved_s) - began_s, watch.moved_s - began_s
    counts = f"published {published:,} ({resent:,} of them again), confirmed {confirmed:,}, nacked {refused:,}"
    print(f"{counts} in {publishing_s:.1f} s: {confirmed / max(publishing_s, 0.001):,.0f} flights/s")
    print(f"delivered {delivered:,} in {draining_s:.1f} s: {delivered / max(draining_s, 0.001):,.0f} messages/s")
    if watch.down_s is not None:
        print(f"the broker was killed with -9 and ready again after {watch.down_s:.2f} s")
    if isinstance(stopped, float):
        print(f"at the end the broker stopped within {stopped:.2f} s of SIGTERM, with exit code 0")
    worst = [(queue, verdict) for queue, verdict in zip(plan, verdicts, strict=True) if not verdict.holds]
    for queue, verdict in worst[:WORST_QUEUES]:
        print(f"  {queue.name} ({queue.kind}: {', '.join(queue.binding_keys)}): {verdict}")
    every = total(verdicts)
    found = (
        (bytes(ledger.confirmed).count(0), "flights were never confirmed"),
        (returned, "flights were returned as unroutable"),
        (altered, "deliveries were altered"),
        (every.missing_confirmed, "confirmed flights are missing in a queue"),
        (every.missing - every.missing_confirmed, "unconfirmed flights are missing in a queue"),
        (every.unexpected, "flights were delivered to a queue that no binding led them to"),
        (every.unexplained, "duplicates were neither redelivered nor resent"),
        (every.left, "messages were left in the queues"),
    )
    failures = [f"{count:,} {text}" for count, text in found if count]
    failures += [stopped] if isinstance(stopped, str) else []
    for text in failures:
        print(f"FAILED: {text}")
    if not failures:
        print(f"OK: all {len(plan):,} queues got their flights, all of them and no others; nothing confirmed was lost")
    return not failures
