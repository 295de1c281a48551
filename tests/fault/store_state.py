"""The state of the store model: queues, slots, messages, and the log position of each operation."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.store.checkpoint import SlotState

NEVER = 1 << 62


@dataclass
class ModelMessage:
    """A message of one queue, with the position of its record and the log positions where its records end."""

    body: bytes
    position: int
    size: int
    published_end: int
    settled_end: int = NEVER
    counts: list[tuple[int, int]] = field(default_factory=list)  # (log end, delivery count)

    @property
    def settled(self) -> bool:
        return self.settled_end != NEVER

    @property
    def transient(self) -> bool:
        """Whether the log has no record of the message."""
        return self.published_end == NEVER


@dataclass
class ModelSlot:
    """A slot of the model."""

    first: int
    end: int
    segments: set[int] = field(default_factory=set)
    logged: int = 0


@dataclass
class ModelQueue:
    """A queue of the model. A recovered message without a record counts as settled."""

    number: int
    next_id: int = 1
    messages: dict[int, ModelMessage] = field(default_factory=dict)
    slots: list[ModelSlot] = field(default_factory=list)
    deleted_end: int = NEVER
    declared_end: int = 0


@dataclass
class ModelTransaction:
    """The effects of one transaction. Shapes: pairs of queue number and message id; ``end`` is a log position."""

    end: int
    published: list[tuple[int, int]]
    settled: list[tuple[int, int]]
    changes: int  # the number of topology changes including those of the transaction, 0 when it has none


def unsettled(slot: SlotState) -> list[int]:
    """Return the indexes of the unsettled messages of a slot."""
    bits = int.from_bytes(slot.settled, "little")
    return [index for index in range(slot.end - slot.first) if not bits >> index & 1]


def delivery_counts(slot: SlotState) -> dict[int, int]:
    """Return the delivery counts of the requeued messages of a slot, by index."""
    return {index: run.delivered for run in slot.returns for index in range(run.first, run.end)}
