"""Which slots a read takes, how they are shared out among tasks, and how many of them a trigger may take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from broker.pipeline.source.positions import Condition, may_hold
from broker.pipeline.source.slot_handle import SlotHandle

__all__ = ["PARTITION_MAX_BYTES", "BatchLimits", "admitted", "runs", "wanted"]

PARTITION_MAX_BYTES: Final = 64 << 20
PARTITION_MIN_BYTES: Final = 4 << 20  # below that a task costs more than it spares


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much one trigger may take; None for no limit."""

    slots: int | None = None
    rows: int | None = None
    bytes: int | None = None


def wanted(slots: Iterable[SlotHandle], conditions: Sequence[Condition]) -> Iterator[SlotHandle]:
    """Yield the slots that can have a row for which all conditions hold."""
    return (slot for slot in slots if slot.count and all(may_hold(condition, slot) for condition in conditions))


def runs(
    slots: Sequence[SlotHandle], tasks: int = 1, partition_max_bytes: int = PARTITION_MAX_BYTES
) -> list[tuple[SlotHandle, ...]]:
    """Return the slots in runs that stay together, in their order.

    Shapes: a run has one slot at least, and more only while they are not longer than an even share for each of `tasks`,
        or than the maximum, whichever is less; shares under 4 MiB are not made.
    """
    share = sum(slot.bytes for slot in slots) // max(tasks, 1) + 1
    most = min(partition_max_bytes, max(share, PARTITION_MIN_BYTES))
    found: list[tuple[SlotHandle, ...]] = []
    run: list[SlotHandle] = []
    size = 0
    for slot in slots:
        if run and size + slot.bytes > most:
            found.append(tuple(run))
            run, size = [], 0
        run.append(slot)
        size += slot.bytes
    if run:
        found.append(tuple(run))
    return found


def admitted(slots: Iterable[SlotHandle], limits: BatchLimits) -> list[SlotHandle]:
    """Return the first of the slots, whole ones, as the limits have it; one at least, so that a stream goes on.

    Cost: no slot behind the first that is too much is looked at.
    """
    taken: list[SlotHandle] = []
    rows = size = 0
    for slot in slots:
        rows += slot.count
        size += slot.bytes
        over = (
            (limits.slots is not None and len(taken) >= limits.slots)
            or (limits.rows is not None and rows > limits.rows)
            or (limits.bytes is not None and size > limits.bytes)
        )
        if over and taken:
            break
        taken.append(slot)
    return taken
