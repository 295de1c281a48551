"""Conditions on rows that the sources see to themselves: they spare slots, and rows before they leave Python.

A condition on a column that every row has (all here do) is true or false, never unknown. So its negation is exact, and
what is left out is exactly what Spark would have left out. Pure, but for the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows
from broker.routing.engines.pairwise import words_match
from broker.routing.pattern import parse_pattern, split_words

__all__ = ["COMPARISONS", "NUMBERS", "TEXTS", "Condition", "chosen_rows", "may_hold"]

NUMBERS: Final = frozenset(("slot", "seal", "offset", "ts"))  # ts in microseconds
TEXTS: Final = frozenset(("vhost", "queue", "exchange", "routing_key"))

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": lambda value, wanted: value == wanted,
    "<": lambda value, wanted: value < wanted,
    "<=": lambda value, wanted: value <= wanted,
    ">": lambda value, wanted: value > wanted,
    ">=": lambda value, wanted: value >= wanted,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions that all have to hold.

    Shapes: column is one of NUMBERS or TEXTS; operator a comparison, `in` with a tuple, or for texts prefix, suffix,
        contains, topic (a binding key). Ordering a text is by its UTF-8 octets, as Spark does.
    """

    column: str
    operator: str
    value: Any
    negated: bool = False

    def __str__(self) -> str:
        return f"{'not ' if self.negated else ''}{self.column} {self.operator} {self.value!r}"


def may_hold(condition: Condition, slot: SlotHandle) -> bool:
    """Returns whether a slot can have a row for which the condition holds."""
    if condition.column in ("vhost", "queue"):
        return _text_test(condition)(getattr(slot, condition.column))
    bounds = _bounds(condition.column, slot)
    if bounds is None:
        return True
    low, high = bounds
    if low == high:
        return bool(_of_numbers(condition, np.array([low]))[0])
    if condition.negated:
        return True
    match condition.operator:
        case "=":
            return bool(low <= condition.value <= high)
        case "in":
            return any(low <= value <= high for value in condition.value)
        case "<" | "<=":
            return bool(COMPARISONS[condition.operator](low, condition.value))
        case _:
            return bool(COMPARISONS[condition.operator](high, condition.value))


def _bounds(column: str, slot: SlotHandle) -> tuple[int, int] | None:
    match column:
        case "offset":
            return slot.first, slot.end - 1
        case "slot":
            return slot.first, slot.first
        case "seal":
            return slot.seal, slot.seal
        case "ts" if slot.first_ts_ms is not None and slot.last_ts_ms is not None:
            return slot.first_ts_ms * 1000, slot.last_ts_ms * 1000
    return None


def chosen_rows(conditions: Sequence[Condition], slot: SlotRows, bad: Sequence[int] = ()) -> Any:
    """Returns the numbers of the rows for which all conditions hold, without the bad ones; None for all rows."""
    mask: Any = None
    for condition in conditions:
        found = _mask(condition, slot)
        mask = found if mask is None else mask & found
    if bad:
        mask = np.ones(len(slot.ids), bool) if mask is None else mask
        mask[list(bad)] = False
    return None if mask is None or mask.all() else np.flatnonzero(mask)


def _mask(condition: Condition, slot: SlotRows) -> Any:
    rows = len(slot.ids)
    match condition.column:
        case "offset":
            return _of_numbers(condition, slot.ids)
        case "ts":
            return _of_numbers(condition, slot.ts_ms * 1000)
        case "slot" | "seal":
            value = slot.meta.first if condition.column == "slot" else slot.meta.seal
            return np.repeat(_of_numbers(condition, np.array([value])), rows)
        case "vhost" | "queue":
            return np.full(rows, _text_test(condition)(getattr(slot.meta, condition.column)))
        case "exchange":
            return _of_texts(condition, slot.exchange())
    return _of_texts(condition, slot.routing_key())


def _of_numbers(condition: Condition, values: Any) -> Any:
    if condition.operator == "in":
        found = np.isin(values, list(condition.value))
    else:
        found = COMPARISONS[condition.operator](values, condition.value)
    return ~found if condition.negated else found


def _of_texts(condition: Condition, texts: pa.StringArray) -> Any:
    encoded = texts.dictionary_encode()  # a distinct text is tested once
    test = _text_test(condition)
    verdicts = np.fromiter(map(test, encoded.dictionary.to_pylist()), bool, len(encoded.dictionary))
    return verdicts[encoded.indices.to_numpy()]


def _text_test(condition: Condition) -> Callable[[str], bool]:
    wanted = condition.value
    test: Callable[[str], bool]
    match condition.operator:
        case "in":
            test = wanted.__contains__
        case "prefix":
            test = lambda text: text.startswith(wanted)  # noqa: E731
        case "suffix":
            test = lambda text: text.endswith(wanted)  # noqa: E731
        case "contains":
            test = lambda text: wanted in text  # noqa: E731
        case "topic":
            words = parse_pattern(wanted).words
            test = lambda text: words_match(words, split_words(text))  # noqa: E731
        case "=":
            test = wanted.__eq__
        case operator:
            compare, octets = COMPARISONS[operator], wanted.encode()
            test = lambda text: bool(compare(text.encode(), octets))  # noqa: E731
    return (lambda text: not test(text)) if condition.negated else test
