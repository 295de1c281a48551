"""Select the slots and rows of a read, split slots into runs for tasks, and limit what one trigger reads. Pure.

The options `from` and `to` are positions; the message at `from` is included, the one at `to` is excluded:

    earliest       the first existing slot (`from` only)
    latest         the end of the last slot
    seal:N         the slot with that seal
    id:N           the message with that id in its queue
    2026-11-20T08:00:00Z, 2026-11-20   the first message accepted at or after that time, in UTC unless a zone is given
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows
from broker.routing.pattern import parse_pattern, split_words, words_match

PARTITION_MAX_BYTES: Final = 64 << 20
PARTITION_MIN_BYTES: Final = 4 << 20  # splitting further costs more than it saves
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
COLUMN_OF: Final = {"seal": "seal", "id": "offset", "time": "ts"}
NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on rows; all conditions of a read must hold.

    Shapes: `offset`, `seal` or `ts` with `>=` or `<`, or `routing_key` with `topic` and a binding key as the value.
    Units: for `ts`, microseconds since 1970.
    """

    column: str
    operator: str
    value: Any


def may_hold(condition: Condition, slot: SlotHandle) -> bool:
    """Return whether the condition can hold for a row of a slot."""
    bounds = _bounds(condition.column, slot)
    if bounds is None:
        return True
    low, high = bounds
    return bool(low < condition.value if condition.operator == "<" else high >= condition.value)


def _bounds(column: str, slot: SlotHandle) -> tuple[int, int] | None:
    match column:
        case "offset":
            return slot.first, slot.end - 1
        case "seal":
            return slot.seal, slot.seal
        case "ts" if slot.first_ts_ms is not None and slot.last_ts_ms is not None:
            return slot.first_ts_ms * 1000, slot.last_ts_ms * 1000
    return None


def chosen_rows(conditions: Sequence[Condition], slot: SlotRows, bad: Sequence[int] = ()) -> Any:
    """Return the numbers of the rows that meet all conditions, except those in `bad`; None stands for all rows."""
    mask: Any = np.ones(len(slot.ids), bool)
    for condition in conditions:
        mask &= _mask(condition, slot)
    mask[list(bad)] = False
    return None if mask.all() else np.flatnonzero(mask)


def _mask(condition: Condition, slot: SlotRows) -> Any:
    match condition.column:
        case "offset":
            values = slot.ids
        case "ts":
            values = slot.ts_ms * 1000
        case "seal":
            values = np.array([meta.seal for meta in slot.metas])[slot.file]
        case _:
            return _matching(condition.value, slot)
    return values < condition.value if condition.operator == "<" else values >= condition.value


def _matching(pattern: str, slot: SlotRows) -> Any:
    keys = slot.routing_key().dictionary_encode()  # match each distinct key once
    words = parse_pattern(pattern).words
    verdicts = [words_match(words, split_words(key)) for key in keys.dictionary.to_pylist()]
    return np.array(verdicts, bool)[keys.indices.to_numpy()]


class BadPosition(ValueError):
    """A text that is not a position; the message is one line."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the order of messages. Units: a time is in microseconds since 1970."""

    kind: str
    value: int = 0

    def rows(self, operator: str) -> tuple[Condition, ...]:
        """Return the condition, if any, on rows from this position on (`>=`) or before it (`<`)."""
        return (Condition(COLUMN_OF[self.kind], operator, self.value),) if self.kind in COLUMN_OF else ()


EARLIEST: Final = Position("earliest")
LATEST: Final = Position("latest")


def read_position(text: str) -> Position:
    """Return the position that a text describes. Raises: BadPosition."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return Position(text)
    kind, colon, number = text.partition(":")
    if colon and kind in ("seal", "id"):
        if not (number.isascii() and number.isdigit()) or int(number) > NUMBER_MAX:
            raise BadPosition(f"{text!r} is not a position: {kind}: needs a number after it")
        return Position(kind, int(number))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadPosition(
            f"{text!r} is not a position, such as earliest, latest, seal:12, id:5000 or 2026-11-20T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Position("time", (moment - EPOCH) // timedelta(microseconds=1))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a group of slots, such as those of one trigger; None sets no limit."""

    slots: int | None = None
    rows: int | None = None
    bytes: int | None = None


def wanted(slots: Iterable[SlotHandle], conditions: Sequence[Condition]) -> Iterator[SlotHandle]:
    """Yield the slots that may have a row for which all conditions hold."""
    return (slot for slot in slots if slot.count and all(may_hold(condition, slot) for condition in conditions))


def groups(slots: Iterable[SlotHandle], limits: BatchLimits) -> Iterator[list[SlotHandle]]:
    """Yield consecutive slots in groups within the limits; a slot that exceeds them is a group of its own."""
    group: list[SlotHandle] = []
    rows = size = 0
    for slot in slots:
        rows += slot.count
        size += slot.bytes
        over = (
            (limits.slots is not None and len(group) >= limits.slots)
            or (limits.rows is not None and rows > limits.rows)
            or (limits.bytes is not None and size > limits.bytes)
        )
        if over and group:
            yield group
            group, rows, size = [], slot.count, slot.bytes
        group.append(slot)
    if group:
        yield group


def runs(
    slots: Sequence[SlotHandle], tasks: int = 1, partition_max_bytes: int = PARTITION_MAX_BYTES
) -> list[list[SlotHandle]]:
    """Split slots into consecutive runs.

    Shapes: a run has at most `partition_max_bytes`, and at most an even share for each of `tasks` or, if that is less,
        4 MiB. A larger slot is a run of its own.
    """
    share = sum(slot.bytes for slot in slots) // max(tasks, 1) + 1
    return list(groups(slots, BatchLimits(bytes=min(partition_max_bytes, max(share, PARTITION_MIN_BYTES)))))


def admitted(slots: Iterable[SlotHandle], limits: BatchLimits) -> list[SlotHandle]:
    """Return the first slots that fit the limits, and at least one if there is any, so that a stream makes progress."""
    return next(groups(slots, limits), [])
