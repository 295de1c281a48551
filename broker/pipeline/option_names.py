"""Looks up a format's options by name, in any case, with a hint for an unknown name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from broker.pipeline.faults import PipelineFault

__all__ = ["NO_TABLE", "known_options"]

OF_SPARK: Final = ("spark.", "__")
OF_TABLE: Final = frozenset(("owner", "provider"))  # which Spark's catalog adds for every table
NO_TABLE: Final = (
    "CREATE TABLE cannot be used, as Spark gives a Python source none of a table's options when it is read or written; "
    "CREATE TEMPORARY VIEW v USING slotmq OPTIONS (...) can"
)


def known_options(
    options: Mapping[str, str], names: Sequence[str], refused: type[PipelineFault], unsaid: Sequence[str] = ()
) -> dict[str, str]:
    """Return the options under their documented names, without Spark's own options.

    Shapes: `unsaid` options are accepted, too, but listed nowhere.
    Raises: `refused`, for an unknown name, and for a table of a catalog.
    """
    if OF_TABLE.issubset(map(str.lower, options)):
        raise refused(NO_TABLE)
    known = {name.lower(): name for name in (*names, *unsaid)}
    given: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower in known:
            given[known[lower]] = value
        elif not lower.startswith(OF_SPARK):
            close = get_close_matches(lower, known, 1)
            hint = f"; do you mean {known[close[0]]}?" if close else f", but {', '.join(names)}"
            raise refused(f"there is no option {name!r}{hint}")
    return given
