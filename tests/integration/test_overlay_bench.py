"""The benchmark of the overlay with real brokers: what it counts is what went through them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.brokers import PROJECT
from bench.overlay import cost, crashes, hops, leaves, load
from bench.overlay.plan import Plan
from bench.run import Run
from bench.stage import Stage, quick

pytestmark = pytest.mark.slow

PLAN = replace(
    quick(Plan()), seconds=0.3, settle_s=0.1, hops=(1,), starts=2, leaves=(1, 2), cost_seconds=0.2,
    timeline_s=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
)  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Provide the circumstances of a small run with interpreted brokers."""
    return Stage(PLAN, {"interpreted": PROJECT}, tmp_path, Run("overlay"), tell=lambda _: None)


def test_messages_go_through_a_chain(stage: Stage) -> None:
    """Starts with and without a cover are timed, and the steady load arrives."""
    hops.measure(stage)
    (row,) = stage.run.rows()
    assert row["hops"] == 1
    assert min(row["delivery_ms"], row["local_ms"], row["global_ms"], row["delivered_per_s"]) > 0


@pytest.mark.torture
def test_every_experiment_runs(stage: Stage) -> None:
    """Each gives its rows; in the failure test each message arrives once and in order, and ib3 takes over."""
    for part in (cost, load, leaves, crashes):
        part.measure(stage)
    run = stage.run
    assert run.failures == []
    assert [(row["form"], row["size"]) for row in run.rows("cost")] == [("interpreted", 16), ("interpreted", 1024)]
    assert [row["publishers"] for row in run.rows("load")] == [200, 600, 200, 600]
    assert [row["leaves"] for row in run.rows("leaves")] == [1, 2, 1, 2]
    (failure,) = run.rows("failure")
    assert (failure["missing"], failure["double"], failure["disordered"]) == (0, 0, 0)
    assert [name for _, name in failure["events"]][:2] == ["ib1 killed", "ib2 killed"]
