"""Conditions against a naive evaluation per row, positions and patterns; without a Spark session."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.pipeline.selection import pattern_regex
from broker.pipeline.source.message_run import batches
from broker.pipeline.source.planner import (
    EARLIEST,
    LATEST,
    BadPosition,
    Condition,
    Position,
    chosen_rows,
    may_hold,
    read_position,
)
from broker.pipeline.source.slot_handle import SlotHandle
from broker.pipeline.source.slot_rows import SlotRows
from broker.routing.pattern import canonical_words, split_words
from broker.slot_files.slot_view import SlotView, open_slot
from tests.property.topic_reference import matches
from tests.slot_folders import START_MS, SlotFolder, TapMessage

WORDS = ["a", "b", "stock", "", "ü"]
KEYS = st.lists(st.sampled_from(WORDS), max_size=4).map(".".join)
BINDING_KEYS = st.lists(st.sampled_from([*WORDS, "*", "#"]), max_size=4).map(".".join)
MESSAGES = st.lists(
    st.builds(TapMessage, key=KEYS, exchange=st.sampled_from(["", "ex", "amq.topic"]), timestamp_ms=st.integers(0, 9)),
    min_size=1,
    max_size=12,
)
MS = 1000

NUMBER_CONDITIONS = st.builds(
    Condition,
    st.sampled_from(["offset", "seal", "ts"]),
    st.sampled_from(["<", ">="]),
    st.integers(-1, 14) | st.integers(0, 9).map(MS.__mul__),
)
TOPIC_CONDITIONS = st.builds(Condition, st.just("routing_key"), st.just("topic"), BINDING_KEYS)


def naive(condition: Condition, row: dict[str, Any]) -> bool:
    """Return whether a condition holds for a row, by naive evaluation."""
    found, wanted = row[condition.column], condition.value
    if condition.operator == "topic":
        return matches(canonical_words(wanted.split(".") if wanted else []), found.split(".") if found else [])
    if condition.column == "ts":
        found = int(found.timestamp() * 1000) * MS
    return bool(found < wanted if condition.operator == "<" else found >= wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SlotFolder:
    """Provide a data folder for all examples."""
    return SlotFolder(tmp_path_factory.mktemp("filters") / "data")


def slot_of(folder: SlotFolder, messages: list[TapMessage]) -> tuple[SlotHandle, SlotView]:
    """Return a slot file with these messages."""
    seal = folder.add_slot("t", messages, first=3)
    return SlotHandle.of(folder.store, seal), open_slot(folder.slot_path(seal.seal).read_bytes())


@settings(max_examples=60)
@given(messages=MESSAGES, conditions=st.lists(NUMBER_CONDITIONS | TOPIC_CONDITIONS, max_size=3))
def test_conditions_choose_the_rows_that_a_naive_evaluation_does(
    folder: SlotFolder, messages: list[TapMessage], conditions: list[Condition]
) -> None:
    """Any conditions on any messages select the same rows, and a skipped slot has none of these."""
    handle, view = slot_of(folder, messages)
    rows = [row for batch in batches(SlotRows(view)) for row in batch.to_pylist()]
    wanted = [n for n, row in enumerate(rows) if all(naive(condition, row) for condition in conditions)]
    found = chosen_rows(conditions, SlotRows(view))
    assert (list(range(len(rows))) if found is None else found.tolist()) == wanted
    if not all(may_hold(condition, handle) for condition in conditions):
        assert wanted == []


def test_bad_rows_are_not_chosen(folder: SlotFolder) -> None:
    """An unreadable row is never selected, with or without conditions."""
    _, view = slot_of(folder, [TapMessage()] * 4)
    assert chosen_rows([], SlotRows(view)) is None
    assert chosen_rows([], SlotRows(view), [1, 3]).tolist() == [0, 2]
    assert chosen_rows([Condition("offset", ">=", 4)], SlotRows(view), [1]).tolist() == [2, 3]


def test_a_snapshots_slot_is_not_spared_by_time(folder: SlotFolder) -> None:
    """A snapshot's slot is not skipped by time, because its timestamps are unknown before the fetch."""
    handle, _ = slot_of(folder, [TapMessage()])
    unknown = SlotHandle(
        **{name: getattr(handle, name) for name in handle.__slots__} | {"first_ts_ms": None, "last_ts_ms": None}
    )
    assert may_hold(Condition("ts", "<", 0), unknown)
    assert not may_hold(Condition("ts", "<", 0), handle)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        (" latest ", LATEST),
        ("seal:12", Position("seal", 12)),
        ("id:0", Position("id", 0)),
        ("2023-11-14T22:13:20Z", Position("time", START_MS * MS)),
        ("2023-11-14T23:13:20.000001+01:00", Position("time", START_MS * MS + 1)),
        ("2023-11-14 22:13:20", Position("time", START_MS * MS)),
        ("1970-01-02", Position("time", 86_400_000_000)),
    ],
)
def test_positions_are_seals_ids_and_times(text: str, position: Position) -> None:
    """A time without a zone is UTC."""
    assert read_position(text) == position


@pytest.mark.parametrize(
    "text", ["", "seal:", "seal:-1", "seal:x", "id:1.5", "id:" + "9" * 19, "offset:1", "tomorrow", "12"]
)
def test_text_that_is_no_position_is_refused(text: str) -> None:
    """The refusal quotes the given text."""
    with pytest.raises(BadPosition, match="is not a position"):
        read_position(text)


def test_from_is_the_first_that_is_read_and_to_the_first_that_is_not() -> None:
    """The start is inclusive and the end exclusive: adjacent ranges share no message and miss none."""
    assert Position("id", 5).rows(">=") == (Condition("offset", ">=", 5),)
    assert Position("seal", 5).rows("<") == (Condition("seal", "<", 5),)
    assert Position("time", 5).rows("<") == (Condition("ts", "<", 5),)
    assert EARLIEST.rows(">=") == LATEST.rows("<") == ()


ODD_WORDS = st.sampled_from(["a", "b", "", "a+", "$", "ü(", "\n"])
ODD_KEYS = st.lists(ODD_WORDS, max_size=5).map(".".join)
PATTERN = st.lists(st.one_of(ODD_WORDS, st.sampled_from(["*", "#"])), max_size=5).map(".".join)


@given(PATTERN, ODD_KEYS)
def test_a_pattern_is_a_regular_expression_over_dotted_words(pattern: str, key: str) -> None:
    """The regular expression matches exactly the reference's keys, with empty words, no words or special letters."""
    dotted = f".{key}" if key else ""
    found = re.fullmatch(pattern_regex(pattern), dotted) is not None
    assert found == matches(split_words(pattern), split_words(key))
