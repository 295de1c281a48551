"""The steps, numbers, times and changed headers of a replay, and the position of an earlier run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from broker.amqp.content_header import decode_properties
from broker.pipeline.jobs.replay import (
    STEP_ROWS,
    BadReplayState,
    Branch,
    PlannedRows,
    ReplayState,
    Step,
    steps_of,
)
from broker.pipeline.sink.property_columns import HeaderChanges, PropertyOctets
from broker.pipeline.sink.publishing import digest, due_us
from broker.pipeline.sink.rows import sequence_of
from tests.unit.pipeline.encoded import properties

ONE, TWO = ("store", "start", "/", "one"), ("store", None, "/", "two")


def slot(seal: int, rows: int, first_s: int = 0, branch: Branch = ONE) -> PlannedRows:
    """Return a slot whose rows arrived within one second."""
    return PlannedRows(branch, seal, rows, first_s * 1_000_000, first_s * 1_000_000 + 999_999)


def test_steps_are_runs_of_seals_up_to_so_many_rows() -> None:
    """Steps follow the order of seals; a larger slot is a step of its own."""
    half = STEP_ROWS // 2
    slots = [slot(9, half), slot(2, half), slot(3, half), slot(5, STEP_ROWS + 1), slot(11, 1)]
    assert steps_of(slots) == [
        Step(2, 3, 2 * half, {ONE: 3}),
        Step(5, 5, STEP_ROWS + 1, {ONE: 5}),
        Step(9, 11, half + 1, {ONE: 11}),
    ]


def test_rows_of_snapshots_are_a_step_of_their_own_and_never_done() -> None:
    """Rows of snapshots have no seal, so their step is always repeated."""
    slots = [slot(0, 7), slot(1, 1), slot(2, 1)]
    assert steps_of(slots) == [Step(0, 0, 7, {ONE: 0}), Step(1, 2, 2, {ONE: 2})]
    assert steps_of(slots, done={ONE: 1}) == [Step(0, 0, 7, {ONE: 0}), Step(2, 2, 1, {ONE: 2})]
    assert steps_of(slots, done={ONE: 0}) == [Step(0, 0, 7, {ONE: 0}), Step(1, 2, 2, {ONE: 2})]


def test_each_tap_of_each_history_has_a_position_of_its_own() -> None:
    """A slot with a lower seal than another history's is not done; slots with one seal are in one step."""
    slots = [slot(0, 7), slot(0, 1, branch=TWO), slot(3, STEP_ROWS), slot(3, STEP_ROWS, branch=TWO), slot(1, 1)]
    both = Step(3, 3, 2 * STEP_ROWS, {ONE: 3, TWO: 3})
    assert steps_of(slots) == [Step(0, 0, 8, {ONE: 0, TWO: 0}), Step(1, 1, 1, {ONE: 1}), both]
    assert steps_of(slots, done={ONE: 9, TWO: 2}) == [
        Step(0, 0, 8, {ONE: 0, TWO: 0}),
        Step(3, 3, STEP_ROWS, {TWO: 3}),
    ]
    assert len({step.batch for step in (*steps_of(slots), *steps_of(slots, done={ONE: 9}))}) == 4


def test_steps_do_not_depend_on_the_order_of_slots() -> None:
    """Another run must number its steps alike, so slots of one seal have an order of their own."""
    slots = [slot(1, 10), slot(2, STEP_ROWS), slot(2, 5, branch=TWO), slot(3, 1), slot(3, 1, branch=TWO)]
    assert steps_of(slots) == steps_of(slots[::-1]) == steps_of(sorted(slots, key=lambda one: one.rows))


def test_a_slow_replay_has_short_steps() -> None:
    """A step lasts about ten seconds, by the rate or by the times of the slots."""
    assert [step.rows for step in steps_of([slot(seal, 40) for seal in range(1, 7)], rate=10)] == [80, 80, 80]
    times = [slot(seal, 1, first_s=4 * seal) for seal in range(1, 9)]
    assert [(step.first, step.last) for step in steps_of(times, speed=1.0)] == [(1, 3), (4, 6), (7, 8)]
    assert [(step.first, step.last) for step in steps_of(times, speed=100.0)] == [(1, 8)]


def test_a_state_goes_on_where_it_was(tmp_path: Path) -> None:
    """Each finished step is recorded, and the next run continues with the following one."""
    path = tmp_path / "jobs" / "state.json"
    state = ReplayState(path, "same")
    state.resume()
    assert state.done == {}
    state.advance(Step(1, 4, 10, {ONE: 4, TWO: 3}))
    state.advance(Step(0, 0, 3, {ONE: 0}))
    again = ReplayState(path, "same")
    again.resume()
    assert again.done == {ONE: 4, TWO: 3}
    assert [found.name for found in path.parent.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "not the state of a replay"),
        ('{"format": 9}', "another version"),
        ('{"format": 1, "selection": "same", "done": 4}', "another version"),
        ('{"format": 2, "selection": "another", "done": []}', "replayed another selection"),
        ('{"format": 2, "selection": "same"}', "not the state of a replay"),
        ('{"format": 2, "selection": "same", "done": 4}', "not the state of a replay"),
        *(
            (f'{{"format": 2, "selection": "same", "done": {done}}}', "not the state of a replay")
            for done in (
                "{}",
                '["abcd5"]',
                '[["store", "", "/", 4]]',
                '[["store", "", "/", "one", "two", 4]]',
                '[["store", "", "/", 1, 4]]',
                '[["store", "", "/", ["one"], 4]]',
                '[["store", "", "/", "one", [4]]]',
                '[["store", "", "/", "one", "4"]]',
                '[["store", "", "/", "one", 4.5]]',
                '[["store", "", "/", "one", true]]',
                '[["store", "", "/", "one", Infinity]]',
            )
        ),
    ],
)
def test_a_state_of_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The state of another replay is refused, because continuing it would skip messages."""
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(BadReplayState, match=said):
        ReplayState(path, "same").resume()


def test_a_digest_is_another_for_something_else() -> None:
    """The digest differs for different replays and does not depend on the order of its parts."""
    assert digest({"a": 1, "b": None}) == digest({"b": None, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_a_row_has_the_number_of_its_slot_and_a_snapshot_none() -> None:
    """A row's number is unique within its store; rows of snapshots have none."""
    rows = [(seal, slot, slot + at) for seal, slot in ((1, 1), (2, 50_001), (3, 1)) for at in (0, 1, 65_535)]
    assert len({sequence_of(*row) for row in rows}) == len(rows)
    assert (sequence_of(1, 10, 12), sequence_of(0, 1, 5), sequence_of(None, 1, 5)) == (65_538, None, None)


def test_times_never_fall() -> None:
    """Messages keep their order when a clock was set back."""
    times = pa.array([5, 3, None, 9, 8], pa.timestamp("us", tz="UTC"))
    assert due_us(times) == [5, 5, 5, 9, 9]


def test_only_named_headers_and_properties_change() -> None:
    """All other entries keep their octets."""
    before = properties({"keep": 1, "drop": 2, "set": 3}, user_id="u", content_type="t")
    changes = HeaderChanges({"set": "new"}, ("drop",), ("user_id",))
    octets = PropertyOctets(persistent=None, changes=changes).of_row(before, (), ())
    assert isinstance(octets, bytes)
    after = decode_properties(bytes(12) + octets)
    assert after.headers == {"keep": 1, "set": "new"}
    assert (after.user_id, after.content_type) == (None, "t")
    assert HeaderChanges()(before) == before
