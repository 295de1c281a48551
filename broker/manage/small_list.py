"""Lists of definitions: short enough to be made at once, with the parameters that every list has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.manage.listing import Listing, listed

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["small_list"]


async def small_list(call: Call, rows: Sequence[dict[str, Any]], *order: str) -> Response:
    """Answer with rows, sorted by the columns of `order`; the first of them is the one that `name` filters."""
    return await listed(
        call.query,
        Listing(
            rows,
            names=lambda row: (str(row[order[0]]),),
            whole=lambda row: row,
            order=lambda row: "\0".join([str(row[name]) for name in order]),
        ),
    )
