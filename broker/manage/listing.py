"""Lists of rows: filtered, sorted, paginated and sent in slices, between which the loop does other work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from time import thread_time
from typing import Any, Final, Generic, TypeVar

from broker.administration.slices import OBJECTS_AT_ONCE, in_slices, pause
from broker.core.bounded_pattern import BoundedPattern
from broker.manage.answers import Response, encoded, json_answer, rows_answer
from broker.manage.call import Call
from broker.manage.refusal import HttpRefused, bad_request
from broker.operations.rows import Row

PAGE_ROWS: Final = 100
PAGE_ROWS_MAX: Final = 500
TRUE: Final = "true"
EXPRESSION_MAX_S: Final = 0.25  # the time for all names of a list: enough for 100,000 with a common expression
SLICE_S: Final = 0.0005  # the time for matching in one turn of the loop
INVALID: Final = "Pagination parameters are invalid"
ROWS_AT_ONCE: Final = 10  # whole rows in one turn of the loop, which take a third of a millisecond
BRIEF_AT_ONCE: Final = 50  # brief rows in one turn of the loop

T = TypeVar("T")
Tree = dict[str, Any]  # maps a column to the chosen parts of its value, or to None for the whole value


class NameFilter:
    """Find names that contain a text or match a regular expression, ignoring case.

    Raises: HttpRefused 400 for an invalid regular expression. Units: `spent_s` is the computing time of all matches.
    """

    def __init__(self, text: str, *, use_regex: bool) -> None:
        self._part = text.lower()
        self.spent_s = self._paused_s = 0.0
        self._pattern: BoundedPattern | None = None
        if use_regex:
            try:
                self._pattern = BoundedPattern(f"(?i){text}", written=text)
            except ValueError as error:
                raise bad_request(f"{INVALID}: name is not a regular expression: {error}") from None

    def finds(self, name: str) -> bool:
        """Return whether a name matches. Raises: HttpRefused 400 for an expression that takes too long."""
        if self._pattern is None:
            return self._part in name.lower()
        begun_s = thread_time()
        found = self._pattern.try_search(name)
        self.spent_s += thread_time() - begun_s
        if found is None or self.spent_s > EXPRESSION_MAX_S:
            raise bad_request(f"{INVALID}: the regular expression takes too long")
        return found

    def needs_pause(self) -> bool:
        """Return whether matching has taken so long since the last pause that the loop should do other work."""
        if self.spent_s - self._paused_s < SLICE_S:
            return False
        self._paused_s = self.spent_s
        return True


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The parameters of a list.

    Shapes: `page` counts from 1, or is None for the whole list; `sort` contains the words of a dotted column, or is
        empty for the default order.
    """

    page: int | None
    page_rows: int
    names: NameFilter | None
    sort: tuple[str, ...]
    descending: bool
    columns: Columns | None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> PageQuery:
        """Return the parameters in the query of a request. Raises: HttpRefused 400 with RabbitMQ's texts."""
        page, page_rows = _integer(query, "page"), _integer(query, "page_size")
        if page is None and query.get("pagination") == TRUE:
            page = 1
        if page is not None and (page < 1 or not 0 < (PAGE_ROWS if page_rows is None else page_rows) <= PAGE_ROWS_MAX):
            size = "undefined" if page_rows is None else page_rows
            raise HttpRefused(
                400,
                f"Invalid pagination parameters: page number {page}, page size {size}",
                "invalid_pagination_parameters",
            )
        text, sort, columns = query.get("name", ""), query.get("sort", ""), query.get("columns", "")
        return cls(
            page,
            page_rows or PAGE_ROWS,
            NameFilter(text, use_regex=query.get("use_regex") == TRUE) if text and page is not None else None,
            tuple(sort.split(".")) if sort else (),
            query.get("sort_reverse") == TRUE,
            Columns(columns) if columns else None,
        )

    def page_count(self, rows: int) -> int:
        """Return the number of pages for a number of rows. Raises: HttpRefused 400 when `page` is after the last."""
        pages = max(1, -(-rows // self.page_rows))
        if self.page is not None and self.page > pages:
            raise HttpRefused(
                400,
                f"Page out of range, page: {self.page} page size: {self.page_rows}, len: {rows}",
                "page_out_of_range",
            )
        return pages


def _integer(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 9:
        raise bad_request(INVALID)
    return int(text)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The objects of a list, and their rows.

    Shapes: `names` returns the names that a filter checks; `order` returns the default sort key, or is None if objects
        keep their order. `whole` returns the complete row, `brief` a cheaper one with the columns `brief_columns`.
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
    found = objects if isinstance(objects, list) else [one async for one in in_slices(objects)]
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
    """Return the objects with a name that matches the filter. Raises: HttpRefused 400."""
    kept = []
    async for one in in_slices(found):
        if any(map(names.finds, listing.names(one))):
            kept.append(one)
        if names.needs_pause():
            await pause()
    return kept


def _maker(listing: Listing[T], asked: PageQuery) -> Callable[[T], Row]:
    """Return the function that builds rows with the requested columns, from brief rows if these suffice."""
    columns = asked.columns
    if columns is None:
        return listing.whole
    brief = listing.brief
    make = brief if brief is not None and columns.names <= listing.brief_columns else listing.whole
    return lambda one: columns.of(make(one))


async def _ordered(found: Sequence[T], listing: Listing[T], asked: PageQuery, stop: int) -> list[T]:
    """Return at least the first `stop` objects, in order. Cost: O(n log n), in slices."""
    key, at_once = _sorting(listing, asked)
    if key is None:
        return list(found)
    runs = []
    for first in range(0, len(found), at_once):
        run = [(key(one), place) for place, one in enumerate(found[first : first + at_once], first)]
        run.sort(reverse=asked.descending)
        runs.append(run)
        await pause()
    merged = merge(*runs, reverse=asked.descending)
    return [found[place] async for _key, place in in_slices(islice(merged, stop))]


def _sorting(listing: Listing[T], asked: PageQuery) -> tuple[Callable[[T], Any] | None, int]:
    """Return the function for sort keys, or None to keep the order; and the number of objects to read in one turn."""
    order, path, brief = listing.order, asked.sort, listing.brief
    if not path:
        return order, OBJECTS_AT_ONCE
    is_brief = brief is not None and path[0] in listing.brief_columns
    make = brief if brief is not None and is_brief else listing.whole

    def by_column(one: T) -> Any:
        return (*sort_key(value_at(make(one), path)), "" if order is None else order(one))

    return by_column, BRIEF_AT_ONCE if is_brief else ROWS_AT_ONCE


def row_answer(call: Call, row: Row) -> Response:
    """Answer with a row, or with those of its columns that the query names."""
    columns = call.query.get("columns", "")
    return json_answer(Columns(columns).of(row) if columns else row)


async def small_list(call: Call, rows: Sequence[dict[str, Any]], *order: str) -> Response:
    """Answer with rows, sorted by the columns `order`; the parameter `name` filters by the first of these columns."""
    return await listed(
        call.query,
        Listing(
            rows,
            names=lambda row: (str(row[order[0]]),),
            whole=lambda row: row,
            order=lambda row: "\0".join([str(row[name]) for name in order]),
        ),
    )


class Columns:
    """The requested columns, such as `name,message_stats.publish_details.rate`."""

    def __init__(self, text: str) -> None:
        self._tree: Tree = {}
        for dotted in text.split(","):
            tree, *rest = self._tree, *dotted.strip().split(".")
            for word in rest[:-1]:
                inner = tree.setdefault(word, {})
                if inner is None:  # the whole value is requested, too
                    break
                tree = inner
            else:
                tree[rest[-1]] = None
        self.names = frozenset(self._tree)

    def of(self, row: Row) -> Row:
        """Return the requested columns that a row has."""
        return _chosen(row, self._tree)


def _chosen(row: Mapping[str, Any], tree: Tree) -> Row:
    found: Row = {}
    for name, inner in tree.items():
        if name in row:
            value = row[name]
            found[name] = _chosen(value, inner) if inner is not None and isinstance(value, dict) else value
    return found


def value_at(row: Row, path: Sequence[str]) -> Any:
    """Return the value of a dotted column, or None if the row does not have it."""
    value: Any = row
    for word in path:
        if not isinstance(value, dict):
            return None
        value = value.get(word)
    return value


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a sort key for values of any type: numbers, and 0 for a missing value; then strings; then others.

    Source: rabbit_mgmt_util sorts in Erlang's order of terms.
    """
    if value is None or isinstance(value, bool | int | float):
        return 0, value or 0
    if isinstance(value, str):
        return 1, value
    return 2, json.dumps(value, sort_keys=True)
