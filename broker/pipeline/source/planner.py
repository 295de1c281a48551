"""Selects the slots of a read, splits them into runs for tasks, and limits those of a trigger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from broker.pipeline.source.positions import Condition, may_hold
from broker.pipeline.source.slot_handle import SlotHandle

__all__ = ["PARTITION_MAX_BYTES", "BatchLimits", "admitted", "runs", "wanted"]

PARTITION_MAX_BYTES: Final = 64 << 20
PARTITION_MIN_BYTES: Final = 4 << 20  # a smaller partition costs more than it saves


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The maximum amount of one trigger; None for no limit."""

    slots: int | None = None
    rows: int | None = None
    bytes: int | None = None


def wanted(slots: Iterable[SlotHandle], conditions: Sequence[Condition]) -> Iterator[SlotHandle]:
    """Yield the slots that can have a row for which all conditions hold."""
    return (slot for slot in slots if slot.count and all(may_hold(condition, slot) for condition in conditions))


def runs(
    slots: Sequence[SlotHandle], tasks: int = 1, partition_max_bytes: int = PARTITION_MAX_BYTES
) -> list[tuple[SlotHandle, ...]]:
    """Split the slots into consecutive runs, in their order.

    Shapes: a run has at least one slot, and further ones up to an even share for each of `tasks`, or up to the maximum,
        whichever is less; shares are never smaller than 4 MiB.
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
    """Return the first whole slots within the limits; at least one, so that a stream makes progress.

    Cost: the search stops at the first slot beyond the limits.
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
