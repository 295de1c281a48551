"""What a caller says about a list: which page of it, which names, in which order, with which columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import thread_time
from typing import Final

from broker.core.bounded_pattern import BoundedPattern
from broker.manage.columns import Columns
from broker.manage.refusal import HttpRefused, bad_request

__all__ = ["PAGE_ROWS_MAX", "NameFilter", "PageQuery"]

PAGE_ROWS: Final = 100
PAGE_ROWS_MAX: Final = 500
TRUE: Final = "true"
EXPRESSION_MAX_S: Final = 0.25  # for all names of a list; a usual expression has looked at 100,000 by then
PIECE_S: Final = 0.0005  # of an expression, between two turns of the loop
INVALID: Final = "Pagination parameters are invalid"


class NameFilter:
    """Finds names: those that a text is a part of, or that a regular expression matches, whatever their case.

    Raises: HttpRefused 400 for what is no regular expression.
    Units: ``spent_s`` is how long the expression has computed, for all names together.
    """

    __slots__ = ("_part", "_pattern", "_paused_s", "spent_s")

    def __init__(self, text: str, *, use_regex: bool) -> None:
        self._part = text.lower()
        self.spent_s = self._paused_s = 0.0
        self._pattern: BoundedPattern | None = None
        if use_regex:
            try:
                self._pattern = BoundedPattern(f"(?i){text}", written=text)
            except ValueError as error:
                raise bad_request(
                    f"Pagination parameters are invalid: name is no regular expression: {error}"
                ) from None

    def finds(self, name: str) -> bool:
        """Return whether the name is one of those. Raises: HttpRefused 400 for an expression that takes too long."""
        if self._pattern is None:
            return self._part in name.lower()
        begun_s = thread_time()
        found = self._pattern.told(name)
        self.spent_s += thread_time() - begun_s
        if found is None or self.spent_s > EXPRESSION_MAX_S:
            raise bad_request(f"{INVALID}: the regular expression takes too long")
        return found

    def needs_pause(self) -> bool:
        """Return whether the expression has computed for a while since this was true last."""
        if self.spent_s - self._paused_s < PIECE_S:
            return False
        self._paused_s = self.spent_s
        return True


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The parameters of a list.

    Shapes: `page` is counted from 1, None for the whole list; `sort` is a dotted column split at its dots, empty for
        the usual order.
    """

    page: int | None
    page_rows: int
    names: NameFilter | None
    sort: tuple[str, ...]
    descending: bool
    columns: Columns | None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> PageQuery:
        """Return what the query of a request says. Raises: HttpRefused 400 in RabbitMQ's words."""
        page, page_rows = _integer(query, "page"), _integer(query, "page_size")
        if page is None and query.get("pagination") == TRUE:
            page = 1
        if page is not None and (page < 1 or not 0 < (PAGE_ROWS if page_rows is None else page_rows) <= PAGE_ROWS_MAX):
            said = "undefined" if page_rows is None else page_rows
            raise HttpRefused(
                400,
                f"Invalid pagination parameters: page number {page}, page size {said}",
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
        """Return how many pages a number of rows fills. Raises: HttpRefused 400 when `page` is behind the last."""
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
