"""The expected results, computed from the data frame alone, without code of the broker or the pipeline."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from demo.flights import LATE_MINUTES
from demo.plan import QueuePlan, expected_counts

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["differing_columns", "expected_late", "expected_routes", "rows_of_day"]


def differing_columns(frame: pd.DataFrame, bodies: Mapping[int, bytes]) -> list[str]:
    """Return the columns in which the received rows differ from the data frame, with the number of differing rows.

    Shapes: `bodies` maps a row number, the message id, to the body. A row that is missing differs in every column.
    """
    import pandas as pd

    found = pd.DataFrame.from_dict(
        {row: json.loads(body) for row, body in bodies.items()}, orient="index", columns=list(frame.columns)
    ).reindex(frame.index)
    differing = []
    for column in frame.columns:
        wanted, got = frame[column], found[column]
        if pd.api.types.is_numeric_dtype(wanted):
            got = pd.to_numeric(got, errors="coerce")
        unequal = int((~((wanted == got) | (wanted.isna() & got.isna()))).sum())
        if unequal:
            differing.append(f"{column} ({unequal:,} rows)")
    return differing


def expected_late(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    """Return how many flights of each carrier and origin were late."""
    late = frame[frame["dep_time"].notna() & (frame["arr_delay"] > LATE_MINUTES)]
    counts = late.groupby(["carrier", "origin"]).size()
    return {(str(carrier), str(origin)): int(count) for (carrier, origin), count in counts.items()}


def expected_routes(plan: Sequence[QueuePlan], keys: Sequence[str]) -> dict[str, int]:
    """Return how many flights each queue of the plan would get, by regular expressions."""
    return dict(zip([queue.name for queue in plan], expected_counts(plan, Counter(keys)), strict=True))


def rows_of_day(frame: pd.DataFrame, month: int, day: int) -> list[int]:
    """Return the rows of one day, ascending."""
    chosen: Any = frame.index[(frame["month"] == month) & (frame["day"] == day)]
    return [int(row) for row in chosen]
