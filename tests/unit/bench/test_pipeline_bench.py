"""The parts of the pipeline's benchmark that run without Spark."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from bench.pipeline import archiving, querying, routing
from bench.pipeline.contest import Lap, contest, row
from bench.pipeline.goals import goals
from bench.pipeline.latency import _figures
from bench.pipeline.probe import _take
from bench.pipeline.slot_store import SlotStore
from bench.pipeline.stage import WrongResult
from broker.perf import wire
from broker.slot_files.slot_file import PERSISTENT
from broker.slot_files.slot_view import open_slot

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS + 5


def test_contestants_run_in_turn(tmp_path: Path) -> None:
    """Each contestant runs once to warm up, then the given number of times, in turn, in a temporary folder."""
    order: list[str] = []
    told: list[tuple[str, bool]] = []

    def work(name: str, rows: int) -> Any:
        def run(folder: Path) -> int:
            assert list(folder.iterdir()) == []
            (folder / "out").write_text("left over")
            order.append(name)
            return rows

        return run

    laps = contest(
        {"ours": work("ours", 10), "theirs": work("theirs", 20)},
        2,
        tmp_path / "laps",
        lambda name, lap: told.append((name, lap is not None)),
    )
    assert order == ["ours", "theirs"] * 3
    assert told == [(name, number > 0) for number in range(3) for name in ("ours", "theirs")]
    assert {name: [lap.rows for lap in own] for name, own in laps.items()} == {"ours": [10, 10], "theirs": [20, 20]}
    assert list((tmp_path / "laps").iterdir()) == []


def test_the_figures_of_a_contestant() -> None:
    """The best lap gives the rate, the median gives the CPU time, the highest peak gives the memory."""
    found = row("ours", [Lap(1000, 2.0, 3.0, 5), Lap(1000, 1.0, 9.0, 7), Lap(1000, 4.0, 4.0, 6)])
    assert (found["rows_per_s"], found["rows_per_s_median"]) == (1000, 500)
    assert (found["cpu_s_per_million"], found["cpu_s_per_million_least"]) == (4000, 3000)
    assert found["peak_bytes"] == 7


def test_goals_are_judged_by_what_was_measured() -> None:
    """A goal is reached at its limit and not beyond it; parts without measurements are not judged."""

    def parts(rows_per_s: float, cpu_s: float, ratio: float) -> dict[str, Any]:
        def one(name: str) -> dict[str, Any]:
            return {"contestants": [{"name": name, "rows_per_s": rows_per_s, "cpu_s_per_million": cpu_s}]}

        return {
            "archive": one(archiving.ARCHIVE),
            "sql": one(querying.SLOTS),
            "route": one(routing.ROUTE) | {"patterns": 10_000},
            "latency": {"ratio": ratio},
            "growth": {
                "sizes": [
                    {"rows": 10_000, "archive_cpu_s": 9.0, "route_cpu_s": 9.0},
                    {"rows": 1_000_000, "archive_cpu_s": 2.0, "route_cpu_s": 2.0},
                    {"rows": 100_000_000, "archive_cpu_s": 150.0 * ratio, "route_cpu_s": 150.0 * ratio},
                ]
            },
        }

    assert [goal["reached"] for goal in goals(parts(600_000, 1.5, 2.0))] == [True] * 7
    assert [goal["reached"] for goal in goals(parts(599_999, 1.51, 2.01))] == [False] * 7
    assert goals({}) == []
    assert [goal["what"] for goal in goals({"latency": {"ratio": 1.0}})] == [
        "p99 while an archive follows, times that without"
    ]


def test_a_store_grows_as_a_tap_does(tmp_path: Path) -> None:
    """Slots have the given number of rows with rising ids of one day, and seals continue after a release."""
    store = SlotStore(tmp_path / "data", ["a.b", "c"], body_bytes=20, slot_rows=40, now_ms=NOW_MS)
    store.add(100)
    assert [(seal.first, seal.count) for seal in store.slots] == [(1, 40), (41, 40), (81, 20)]
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
    store.remove_all()
    store.add(10)
    store.close()
    assert [(seal.seal, seal.first) for seal in store.slots] == [(4, 101)]
    assert [path.name for path in (tmp_path / "data" / "slots").glob("*.slot")] == [f"{4:020}.slot"]


def test_deliveries_are_timed_by_what_their_bodies_say() -> None:
    """However the stream is split, each delivery is recorded once, when its body is complete."""
    stamps = [5, 70_000_000_000, 9]
    stream = b"".join(
        wire.deliver(1, "bench", "bench", "a.b", stamp.to_bytes(8, "big") + bytes(12), persistent=True)
        for stamp in stamps
    )
    for cut in range(len(stream)):
        times: array[int] = array("q")
        buffer = bytearray(stream[:cut])
        del buffer[: _take(buffer, 100, times)]
        buffer += stream[cut:]
        del buffer[: _take(buffer, 200, times)]
        assert buffer == b""
        assert times[::2].tolist() == stamps
        assert times[1::2].tolist() == sorted(times[1::2])


def test_percentiles_are_those_of_the_slice() -> None:
    """Only messages that were due in the slice count, in any order; an empty slice has no result."""
    times = [(due, due + took * 1_000_000) for due, took in zip(range(1000, 1200), range(200, 0, -1), strict=True)]
    found = _figures(times, (1000, 1100))
    assert (found["messages"], found["p50_ms"], found["p99_ms"], found["max_ms"]) == (100, 151.0, 200.0, 200.0)
    with pytest.raises(WrongResult):
        _figures(times, (0, 1000))
