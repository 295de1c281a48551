"""The parts of the pipeline's benchmark that run without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from bench.pipeline import jobs
from bench.pipeline.commands import FOLLOWED, QUIET
from bench.pipeline.ground import Ground, SlotStore
from bench.pipeline.suite import Plan, goals
from bench.run import Run
from bench.stage import Stage, quick
from broker.perf import wire
from broker.slot_files.slot_file import PERSISTENT
from broker.slot_files.slot_view import open_slot

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS + 5


def test_contestants_run_in_turn_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    """Each contestant runs once to warm up, then the given number of times, in turn, in a temporary folder."""
    order: list[str] = []

    def work(name: str, rows: int) -> Any:
        def run(folder: Path) -> int:
            assert list(folder.iterdir()) == []
            (folder / "out").write_text("left over")
            order.append(name)
            return rows

        return run

    stage = Stage(quick(Plan()), {}, tmp_path, Run("pipeline"), tell=lambda _: None)
    Ground(stage).race("archive", {"ours": work("ours", 10), "theirs": work("theirs", 20)}, 2)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert [(row["name"], row.runs) for row in stage.run.rows("archive")] == [("theirs", 2), ("ours", 2)]
    assert list(tmp_path.iterdir()) == []


def test_goals_are_judged_by_what_was_measured() -> None:
    """A goal is reached at its limit and not beyond it; the best lap gives a rate; a quick run is not judged."""

    def run_of(rows_per_s: float, cpu_s: float, ratio: float, *, quick: bool = False) -> Run:
        run = Run("pipeline", {"quick": quick})
        for part, name in (("archive", jobs.ARCHIVE), ("sql", jobs.SLOTS), ("route", jobs.ROUTE)):
            for rate in (rows_per_s, 1.0):
                run.add(part, {"rows_per_s": rate, "cpu_s_per_million": cpu_s}, name=name)
        for name, p99_us in ((QUIET, 10.0), (FOLLOWED, 10.0 * ratio)):
            run.add("latency", {"p99_us": p99_us}, name=name)
        return run

    assert [goal.reached for goal in goals(run_of(600_000, 1.5, 2.0))] == [True] * 5
    assert [goal.reached for goal in goals(run_of(599_999, 1.51, 2.01))] == [False] * 5
    assert list(goals(run_of(1, 9.0, 9.0, quick=True))) == []
    assert list(goals(Run("pipeline", {"quick": False}))) == []


def test_a_store_grows_as_a_tap_does(tmp_path: Path) -> None:
    """Slots have the given number of rows with rising ids of one day."""
    store = SlotStore(tmp_path / "data", ["a.b", "c"], body_bytes=20, slot_rows=40, now_ms=NOW_MS)
    store.add(100)
    assert [(seal.first, seal.count) for seal in store._folder.view.seals] == [(1, 40), (41, 40), (81, 20)]
    views = [open_slot((tmp_path / "data" / "slots" / f"{n:020}.slot").read_bytes()) for n in (1, 2, 3)]
    rows = [one for view in views for one in view]
    assert [one.message_id for one in rows] == list(range(1, 101))
    assert {one.timestamp_ms // DAY_MS for one in rows} == {19_999}
    assert {one.key for one in rows} == {b"a.b", b"c"}
    assert {len(one.body) for one in rows} == {20}
    assert len({one.body for one in rows}) == 100
    assert {(one.flags, one.header) for one in rows} == {
        (PERSISTENT, wire.CONTENT_HEAD.pack(60, 0, 20, 1 << 12) + b"\x02")
    }
    assert all(view.verify() == [] for view in views)
    store.close()
