"""Spark's filters as conditions that the source sees to itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import datasource as spark_filters

from broker.pipeline.source.filters import NUMBERS, TEXTS, Condition
from broker.pipeline.source.positions import EPOCH

__all__ = ["conditions_of"]

OPERATORS: Final[dict[type[spark_filters.Filter], str]] = {
    spark_filters.EqualTo: "=",
    spark_filters.EqualNullSafe: "=",
    spark_filters.LessThan: "<",
    spark_filters.LessThanOrEqual: "<=",
    spark_filters.GreaterThan: ">",
    spark_filters.GreaterThanOrEqual: ">=",
    spark_filters.In: "in",
}
TEXT_OPERATORS: Final[dict[type[spark_filters.Filter], str]] = {
    **OPERATORS,
    spark_filters.StringStartsWith: "prefix",
    spark_filters.StringEndsWith: "suffix",
    spark_filters.StringContains: "contains",
}


def conditions_of(pushed: spark_filters.Filter) -> tuple[Condition, ...] | None:
    """Returns conditions that hold exactly where a filter does; none for one that always holds.

    None when Spark has to see to it: another column, a comparison with null, or a value of another type.
    """
    negated = isinstance(pushed, spark_filters.Not)
    if negated:
        pushed = pushed.child
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if column not in NUMBERS and column not in TEXTS:
        return None
    if isinstance(pushed, spark_filters.IsNotNull):
        return None if negated else ()  # every row has these columns
    operator = (OPERATORS if column in NUMBERS else TEXT_OPERATORS).get(type(pushed))
    if operator is None:
        return None
    if operator != "in":
        value = _value(column, pushed.value)
        return None if value is None else (Condition(column, operator, value, negated),)
    values = tuple(_value(column, value) for value in pushed.value)
    return None if None in values else (Condition(column, operator, values, negated),)


def _value(column: str, value: Any) -> Any:
    """Returns the value as conditions have it, None when it is of another type than the column."""
    if column in TEXTS:
        return value if isinstance(value, str) else None
    if column == "ts":
        if not isinstance(value, datetime):
            return None
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
