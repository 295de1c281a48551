"""Compares the expected and the received messages of every queue, and prints the report of a run.

A verdict is an array of numbers, one for each of COLUMNS. `duplicates` are all copies beyond the first, `unexplained`
those that are not flagged as redelivered after a kill, and whose flight was not published again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from broker.cli.table import aligned
from demo.display import Watch
from demo.ledger import Count, Ledger
from demo.plan import QueuePlan

COLUMNS = ("expected", "got", "missing", "unexpected", "duplicates", "unexplained", "left", "missing and confirmed")
FAULTS = [COLUMNS.index(column) for column in ("missing", "unexpected", "unexplained", "left")]
WORST_QUEUES = 10


def judge(ledger: Ledger, hits: Any, keys: Sequence[str], left: Sequence[int], killed: bool) -> Any:
    """Return a verdict on every queue, counted as distinct flights.

    Shapes: `hits` says for each queue which of the sorted distinct keys it must get; `left` has its remaining messages.
    Cost: a pass over two bytes per queue and flight.
    """
    _, key_of_row = np.unique(keys, return_inverse=True)
    attempts = np.frombuffer(ledger.attempts, dtype=np.uint8)
    confirmed = np.frombuffer(ledger.confirmed, dtype=np.uint8).astype(bool)
    verdicts: Any = np.zeros((len(hits), len(COLUMNS)), dtype=np.int64)
    for index, hit in enumerate(hits):
        expected = hit[key_of_row]
        fresh, redelivered = (np.frombuffer(ledger.copies(index, flag), np.uint8).astype(int) for flag in (False, True))
        got = fresh + redelivered > 0
        missing = expected & ~got
        # A flight that was published n times may arrive n times unflagged. A flagged copy requires a killed broker.
        unexplained = np.maximum(fresh, attempts) - attempts + (0 if killed else redelivered)
        parts = (expected, got, missing, got & ~expected, fresh + redelivered - got, unexplained)
        sums = [part.sum(dtype=np.int64) for part in parts]
        verdicts[index] = (*sums, left[index], (missing & confirmed).sum())
    return verdicts


def show_report(plan: Sequence[QueuePlan], verdicts: Any, ledger: Ledger, watch: Watch, unstopped: str) -> bool:
    """Print the table, the rates and the verdict; return whether the brokers kept their guarantees.

    `unstopped` is the error of a broker that did not stop, or an empty text.
    """
    published, resent, confirmed, refused, returned, delivered, _, altered, _ = map(ledger.total, Count)
    rows = []
    for kind in (*dict.fromkeys(queue.kind for queue in plan), "all"):
        members = verdicts[[kind in {queue.kind, "all"} for queue in plan]]
        rows.append([kind, *(f"{number:,}" for number in (len(members), *members.sum(0)[:-1]))])
    print("", *aligned(("pattern", "queues", *COLUMNS[:-1]), rows), "", sep="\n")
    began_s = watch.began_s or watch.moved_s
    publishing_s, draining_s = (watch.published_s or watch.moved_s) - began_s, watch.moved_s - began_s
    counts = f"published {published:,} ({resent:,} of them again), confirmed {confirmed:,}, nacked {refused:,}"
    print(f"{counts} in {publishing_s:.1f} s: {confirmed / max(publishing_s, 0.001):,.0f} flights/s")
    print(f"delivered {delivered:,} in {draining_s:.1f} s: {delivered / max(draining_s, 0.001):,.0f} messages/s")
    for index in np.flatnonzero(verdicts[:, FAULTS].any(1))[:WORST_QUEUES]:
        queue, numbers = plan[index], zip(COLUMNS, verdicts[index], strict=True)
        said = ", ".join(f"{number:,} {column}" for column, number in numbers)
        print(f"  {queue.name} ({queue.kind}: {', '.join(queue.binding_keys)}): {said}")
    _, _, missing, unexpected, _, unexplained, left, missing_confirmed = verdicts.sum(0)
    found = (
        (bytes(ledger.confirmed).count(0), "flights were never confirmed"),
        (returned, "flights were returned as unroutable"),
        (altered, "deliveries were altered"),
        (missing_confirmed, "confirmed flights are missing in a queue"),
        (missing - missing_confirmed, "unconfirmed flights are missing in a queue"),
        (unexpected, "flights were delivered to a queue that no binding led them to"),
        (unexplained, "duplicates were neither redelivered nor resent"),
        (left, "messages were left in the queues"),
    )
    failures = [*(f"{count:,} {text}" for count, text in found if count), *filter(None, [unstopped])]
    for text in failures:
        print(f"FAILED: {text}")
    if not failures:
        print(f"OK: all {len(plan):,} queues got their flights, all of them and no others; nothing confirmed was lost")
    return not failures
