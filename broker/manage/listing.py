"""Lists of rows: filtered, sorted, cut into pages, and sent, all in pieces between which the broker works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from starlette.responses import Response

from broker.manage.answers import encoded, rows_answer
from broker.manage.columns import Row, sort_key, value_at
from broker.manage.gradual import OBJECTS_AT_ONCE, in_pieces, pause
from broker.manage.page_query import NameFilter, PageQuery

__all__ = ["Listing", "listed"]

ROWS_AT_ONCE: Final = 10  # whole rows that are made and encoded between two turns of the loop: a third of a millisecond
BRIEF_AT_ONCE: Final = 50  # brief rows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What is listed, and how it becomes rows.

    Shapes: `names` returns the names that a filter looks at; `order` returns the text that the objects are usually
        sorted by, None for objects that stay in their order. `whole` makes the row that is sent, `brief` a cheaper one
        of the columns `brief_columns`.
    """

    objects: Iterable[T]
    names: Callable[[T], Iterable[str]]
    whole: Callable[[T], Row]
    order: Callable[[T], str] | None
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
        found = await _filtered(found, listing, asked.names)
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


async def _filtered(found: Sequence[T], listing: Listing[T], names: NameFilter) -> list[T]:
    """Return the objects one of whose names is asked for. Raises: HttpRefused 400."""
    kept = []
    async for one in in_pieces(found):
        if any(map(names.finds, listing.names(one))):
            kept.append(one)
        if names.needs_pause():
            await pause()
    return kept


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
    order, descending = listing.order, asked.descending
    if asked.sort:
        return await _by_column(found, listing, asked, stop)
    if order is None:
        return list(found)
    runs = []
    async for run in _runs(found, OBJECTS_AT_ONCE):
        run.sort(key=order, reverse=descending)
        runs.append(run)
    return [one async for one in in_pieces(islice(merge(*runs, key=order, reverse=descending), stop))]


async def _by_column(found: Sequence[T], listing: Listing[T], asked: PageQuery, stop: int) -> list[T]:
    """Return the objects in the order of a column, and in their usual order within it; each is looked at once."""
    order, path, brief = listing.order, asked.sort, listing.brief
    is_brief = brief is not None and path[0] in listing.brief_columns
    make = brief if brief is not None and is_brief else listing.whole
    runs = []
    first = 0
    async for run in _runs(found, BRIEF_AT_ONCE if is_brief else ROWS_AT_ONCE):
        keys = [
            (*sort_key(value_at(make(one), path)), "" if order is None else order(one), place)
            for place, one in enumerate(run, first)
        ]
        keys.sort(reverse=asked.descending)
        runs.append(keys)
        first += len(run)
    merged = merge(*runs, reverse=asked.descending)
    return [found[place] async for *_key, place in in_pieces(islice(merged, stop))]


async def _runs(found: Sequence[T], at_once: int) -> AsyncIterator[list[T]]:
    """Yield the objects in parts, and let the loop do other work after each."""
    for first in range(0, len(found), at_once):
        yield list(found[first : first + at_once])
        await pause()
