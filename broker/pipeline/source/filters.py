"""Conditions on rows, as the options `from`, `to` and `topic` make them: they spare slots, and rows in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows
from broker.routing.engines.pairwise import words_match
from broker.routing.pattern import parse_pattern, split_words

__all__ = ["Condition", "chosen_rows", "may_hold"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions that all have to hold.

    Shapes: offset, seal or ts with >= or <, or routing_key with topic, whose value is a binding key.
    Units: of ts microseconds since 1970.
    """

    column: str
    operator: str
    value: Any


def may_hold(condition: Condition, slot: SlotHandle) -> bool:
    """Return whether a slot can have a row for which the condition holds."""
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
    """Return the numbers of the rows for which all conditions hold, without the bad ones; None for all rows."""
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
            values = np.full(len(slot.ids), slot.meta.seal)
        case _:
            return _matching(condition.value, slot)
    return values < condition.value if condition.operator == "<" else values >= condition.value


def _matching(pattern: str, slot: SlotRows) -> Any:
    keys = slot.routing_key().dictionary_encode()  # a distinct key is matched once
    words = parse_pattern(pattern).words
    verdicts = [words_match(words, split_words(key)) for key in keys.dictionary.to_pylist()]
    return np.array(verdicts, bool)[keys.indices.to_numpy()]
