"""Lists: filtered, sorted, cut into pages and columns, in pieces between which the loop does other work."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from time import thread_time
from typing import Any

import pytest
from starlette.types import Message

from broker.administration.slices import OBJECTS_AT_ONCE
from broker.manage.listing import ROWS_AT_ONCE, Columns, Listing, NameFilter, PageQuery, listed, sort_key
from broker.manage.refusal import HttpRefused


def row(number: int) -> dict[str, Any]:
    """Return the row of an object of the lists here."""
    return {"name": f"q{number:05}", "length": number % 7, "stats": {"rate": number / 2}, "whole": True}


def listing(numbers: list[int], **changed: Any) -> Listing[int]:
    """Return a list of numbers that are usually sorted by their names."""
    fields: dict[str, Any] = {"names": lambda number: (row(number)["name"],), "whole": row, "order": lambda one: one}
    return Listing(numbers, **(fields | changed))


async def answer_of(listing: Listing[Any], **query: str) -> Any:
    """Return the JSON that a request gets."""
    response = await listed(query, listing)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is received")

    await response({"type": "http", "method": "GET"}, receive, send)
    return json.loads(b"".join(message.get("body", b"") for message in sent))


async def test_without_a_page_all_rows_come_in_their_order() -> None:
    """A list that no one asked a page of is a plain list, sorted as usual."""
    assert [one["name"] for one in await answer_of(listing([3, 1, 2]))] == ["q00001", "q00002", "q00003"]
    assert await answer_of(listing([])) == []
    assert (await answer_of(listing([]), pagination="true"))["page"] == 1
    assert [one["length"] for one in await answer_of(listing([3, 1, 2], order=None))] == [3, 1, 2]


async def test_names_are_found_by_a_part_or_an_expression() -> None:
    """A name filter is a part of the name, whatever its case, or a regular expression."""
    numbers = list(range(1000))
    answer = await answer_of(listing(numbers), page="1", name="Q0001")
    assert (answer["filtered_count"], answer["total_count"]) == (10, 1000)
    answer = await answer_of(listing(numbers), page="1", name="^Q.*[05]$", use_regex="true", page_size="500")
    assert answer["filtered_count"] == 200
    assert len(await answer_of(listing(numbers), name="q00001")) == 1000  # a filter belongs to a page, as in RabbitMQ


@pytest.mark.parametrize(
    ("query", "word", "reason"),
    [
        ({"page": "1", "page_size": "0"}, "invalid_pagination_parameters", "page number 1, page size 0"),
        ({"page": "\u0663"}, "bad_request", "Pagination parameters are invalid"),
        ({"page": "1", "name": "(", "use_regex": "true"}, "bad_request", "not a regular expression"),
    ],
)
async def test_a_page_that_cannot_be_is_refused(query: dict[str, str], word: str, reason: str) -> None:
    """An invalid page is refused with RabbitMQ's word and reason; more of them are among the recorded answers."""
    with pytest.raises(HttpRefused) as refused:
        await listed(query, listing(list(range(7))))
    assert refused.value.status == 400
    assert refused.value.fields()["error"] == word
    assert reason in refused.value.reason


async def test_an_expression_that_takes_too_long_is_refused() -> None:
    """A regular expression has a bounded time for all names together."""
    slow = listing([1], names=lambda _one: ("a" * 40 + "!",))
    with pytest.raises(HttpRefused, match="takes too long"):
        await listed({"page": "1", "name": "(?=a)(a|aa)+$", "use_regex": "true"}, slow)


async def test_a_name_has_five_milliseconds() -> None:
    """The search for one name holds up everybody, and the first one that takes too long ends the request."""
    names = NameFilter("(?=a)(a|aa)+$", use_regex=True)  # RE2 has no lookahead
    granted_s: list[float] = []

    class Slow:
        pattern = "(?=a)(a|aa)+$"

        def search(self, _name: str, *, timeout: float, concurrent: bool) -> None:
            granted_s.append(timeout)
            begun_s = thread_time()
            while thread_time() - begun_s < timeout:
                assert not concurrent
            raise TimeoutError

    assert names._pattern is not None
    names._pattern._compiled = Slow()
    with pytest.raises(HttpRefused, match="takes too long"):
        names.finds("a" * 40)
    assert sum(granted_s) <= 0.005


async def test_an_expression_has_a_time_for_all_names_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that is slow for each name, but not too slow, is refused before it has looked at many."""
    now_s = 0.0
    asked = 0

    def names(_number: int) -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        return ("name",)

    def clock() -> float:
        nonlocal now_s
        now_s += 0.005
        return now_s

    monkeypatch.setattr("broker.manage.listing.thread_time", clock)
    with pytest.raises(HttpRefused, match="takes too long"):
        await listed({"page": "1", "name": "a", "use_regex": "true"}, listing(list(range(10_000)), names=names))
    assert 49 <= asked <= 52  # of 5 ms each


async def test_any_column_sorts() -> None:
    """A dotted column sorts, in both directions; the usual order decides between equal ones."""
    numbers = [5, 12, 3, 10, 1]
    answer = await answer_of(listing(numbers), sort="length")
    assert [(one["length"], one["name"]) for one in answer] == [
        (1, "q00001"), (3, "q00003"), (3, "q00010"), (5, "q00005"), (5, "q00012"),
    ]  # fmt: skip
    answer = await answer_of(listing(numbers), sort="stats.rate", sort_reverse="true", page="1", page_size="2")
    assert [one["name"] for one in answer["items"]] == ["q00012", "q00010"]
    answer = await answer_of(listing(numbers), sort="missing.column")
    assert [one["name"] for one in answer] == [row(number)["name"] for number in sorted(numbers)]


def test_values_of_all_types_sort() -> None:
    """Numbers come before texts, and these before tables and lists; what is missing counts as 0."""
    values = [{"a": 1}, "b", 2, None, "a", -1, True, [1]]
    assert sorted(values, key=sort_key) == [-1, None, True, 2, "a", "b", [1], {"a": 1}]


def test_columns_are_chosen_by_their_dotted_names() -> None:
    """Only the chosen columns stay, within tables too."""
    chosen = Columns("name,stats.rate, other.none ,list,whole.x")
    assert chosen.of({"name": "q", "stats": {"rate": 1, "x": 2}, "list": [1], "whole": 3}) == {
        "name": "q", "stats": {"rate": 1}, "list": [1], "whole": 3,
    }  # fmt: skip
    assert Columns("a,a.b").of({"a": {"b": 1, "c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert Columns("a.b,a").of({"a": {"b": 1, "c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert PageQuery.of({"columns": ""}).columns is None


async def test_brief_rows_suffice_for_their_columns() -> None:
    """Whole rows are made only for what is sent, and not at all when the chosen columns are in the brief ones."""
    made: list[int] = []

    def whole(number: int) -> dict[str, Any]:
        made.append(number)
        return row(number)

    def brief(number: int) -> dict[str, Any]:
        return {"name": row(number)["name"], "length": row(number)["length"]}

    numbers = list(range(1000))
    some = listing(numbers, whole=whole, brief=brief, brief_columns=frozenset({"name", "length"}))
    answer = await answer_of(some, page="1", page_size="3", sort="length", sort_reverse="true")
    assert [one["length"] for one in answer["items"]] == [6, 6, 6]
    assert len(made) == 3
    assert await answer_of(some, columns="length", sort="name", page="1", page_size="1") == {
        "filtered_count": 1000, "item_count": 1, "items": [{"length": 0}], "page": 1, "page_count": 1000,
        "page_size": 1, "total_count": 1000,
    }  # fmt: skip
    assert len(made) == 3
    await answer_of(some, sort="stats.rate", page="1", page_size="1")
    assert len(made) == 3 + 1000 + 1


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"page": "1", "page_size": "500"},
        {"sort": "stats.rate"},
        {"sort": "length", "page": "7", "page_size": "500"},
        {"page": "1", "name": "9", "use_regex": "true"},
    ],
)
async def test_the_loop_turns_after_each_piece(query: dict[str, str]) -> None:
    """Between two turns of the loop only a bounded number of rows is made, and of objects looked at."""
    turn = 0
    rows: Counter[int] = Counter()
    looks: Counter[int] = Counter()

    def whole(number: int) -> dict[str, Any]:
        rows[turn] += 1
        return row(number)

    def brief(number: int) -> dict[str, Any]:
        looks[turn] += 1
        return {"length": number % 7}

    def names(number: int) -> tuple[str, ...]:
        looks[turn] += 1
        return (row(number)["name"],)

    def order(number: int) -> str:
        looks[turn] += 1
        return f"{number:05}"

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    some = Listing(list(range(10_000)), names, whole, order, brief, frozenset({"length"}))
    await answer_of(some, **query)
    counting.cancel()
    assert sum(rows.values()) >= 100
    assert max(rows.values()) <= ROWS_AT_ONCE
    assert max(looks.values(), default=0) <= 2 * OBJECTS_AT_ONCE


async def test_those_who_ask_at_the_same_time_take_turns() -> None:
    """However many callers there are, a turn of the loop has the piece of one of them; all of them continue."""
    turn = 0
    rows: Counter[int] = Counter()

    def whole(number: int) -> dict[str, Any]:
        rows[turn] += 1
        return row(number)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    asked = [asyncio.create_task(answer_of(listing(list(range(500)), whole=whole, order=None))) for _ in range(9)]
    await asyncio.sleep(0)
    begun = turn
    asked.pop().cancel()  # one of them leaves
    assert [len(await one) for one in asked] == [500] * 8
    counting.cancel()
    assert max(count for at, count in rows.items() if at > begun + 1) <= ROWS_AT_ONCE
