"""Lists of rows: filtered, sorted, cut into pages, and sent, all in pieces between which the broker works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from starlette.responses import Response

from broker.manage.answers import encoded, rows_answer
from broker.manage.columns import Row, sort_key, value_at
from broker.manage.gradual import OBJECTS_AT_ONCE, in_pieces
from broker.manage.page_query import PageQuery

__all__ = ["Listing", "listed"]

ROWS_AT_ONCE: Final = 20  # whole rows that are made and encoded between two turns

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What is listed, and how it becomes rows.

    Shapes: `names` returns the names that a filter looks at; `order` returns what the objects are usually sorted by,
        None for objects that stay in their order. `brief` makes a row of the columns `brief_columns`, which costs
        little; `whole` makes the row that is sent. Without `brief` whole rows are sorted.
    """

    objects: Iterable[T]
    names: Callable[[T], Iterable[str]]
    whole: Callable[[T], Row]
    order: Callable[[T], Any] | None
    brief: Callable[[T], Row] | None = None
    brief_columns: frozenset[str] = frozenset()


async def listed(query: Mapping[str, str], listing: Listing[T]) -> Response:
    """Return the answer to a request for a list. Raises: HttpRefused 400."""
    asked = PageQuery.of(query)
    make = _maker(listing, asked)
    if asked.page is None and not asked.sort and listing.order is None:
        return rows_answer(map(make, listing.objects), at_once=ROWS_AT_ONCE)
    objects = listing.objects
    found = objects if isinstance(objects, list) else [one async for one in in_pieces(objects)]
    total = len(found)
    if asked.names is not None:
        finds = asked.names.finds
        found = [one async for one in in_pieces(found) if any(finds(name) for name in listing.names(one))]
    count = len(found)
    pages = asked.page_count(count)
    start = 0 if asked.page is None else (asked.page - 1) * asked.page_rows
    stop = count if asked.page is None else min(count, start + asked.page_rows)
    chosen = (await _ordered(found, listing, asked, stop))[start:stop]
    rows: Iterable[Any] = map(make, chosen)
    if asked.page is None:
        return rows_answer(rows, at_once=ROWS_AT_ONCE)
    facts = {
        "filtered_count": count,
        "item_count": len(chosen),
        "page": asked.page,
        "page_count": pages,
        "page_size": asked.page_rows,
        "total_count": total,
    }
    before = encoded(facts)[:-1] + b',"items":['
    return rows_answer(rows, before, b"]}\n", at_once=ROWS_AT_ONCE)


def _maker(listing: Listing[T], asked: PageQuery) -> Callable[[T], Row]:
    """Return what makes the rows that are sent: of the chosen columns, from brief rows if these suffice."""
    columns = asked.columns
    if columns is None:
        return listing.whole
    brief = listing.brief
    make = brief if brief is not None and columns.names <= listing.brief_columns else listing.whole
    return lambda one: columns.of(make(one))


async def _ordered(found: Sequence[T], listing: Listing[T], asked: PageQuery, stop: int) -> list[T]:
    """Return the objects in order, as far as the page reaches. Cost: O(n log n), in pieces."""
    key = _key(listing, asked)
    if key is None:
        return list(found)
    at_once = ROWS_AT_ONCE if asked.sort else OBJECTS_AT_ONCE
    runs: list[list[tuple[Any, T]]] = []
    for first in range(0, len(found), at_once):
        run = [(key(one), one) for one in found[first : first + at_once]]
        run.sort(key=itemgetter(0), reverse=asked.descending)
        runs.append(run)
        await asyncio.sleep(0)
    merged = merge(*runs, key=itemgetter(0), reverse=asked.descending)
    return [one async for _key, one in in_pieces(islice(merged, stop))]


def _key(listing: Listing[T], asked: PageQuery) -> Callable[[T], Any] | None:
    """Return what the objects are sorted by: the column that is asked for, and the usual order within it."""
    order, path, brief = listing.order, asked.sort, listing.brief
    if not path:
        return order
    make = brief if brief is not None and path[0] in listing.brief_columns else listing.whole
    if order is None:
        return lambda one: sort_key(value_at(make(one), path))
    return lambda one: (sort_key(value_at(make(one), path)), order(one))
