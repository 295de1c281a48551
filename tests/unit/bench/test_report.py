"""Medians, floors and goals, and their presentation."""

from __future__ import annotations

from typing import Any

import pytest

from bench.columns import kind
from bench.goals import FLOORS, GOALS
from bench.measured import Measured, medians
from bench.report import goals_text, report_text
from bench.rows import GROUPS, rows, titles


def run(broker: str, scenario: str, **figures: float) -> dict[str, Any]:
    """Return a run as it is stored."""
    return {"broker": broker, "scenario": scenario, "round": 0, "figures": figures, "step_ns": 50.0}


def measured(*runs: dict[str, Any], **limits: Any) -> Measured:
    """Return the report on a stored run with these runs."""
    titles = dict.fromkeys((one["scenario"] for one in runs), "a title")
    return Measured.of({"titles": titles, "runs": runs, "append_limits": {}, "least_calls": {}} | limits)


def beside(ours: float, peer: float, scenario: str = "S1-16", figure: str = "cpu_us") -> Measured:
    """Return three runs each of SlotMQ and of RabbitMQ, with one outlier each."""
    noise = (1.0, 9.0, 0.9)
    return measured(
        *(run("SlotMQ", scenario, **{figure: ours * one}) for one in noise),
        *(run("RabbitMQ", scenario, **{figure: peer * one}) for one in noise),
    )


def test_ratio_is_that_of_the_medians() -> None:
    """An outlier does not matter; the ratio says how many times less than RabbitMQ a message costs."""
    assert beside(4.0, 60.0).times_of_peer("SlotMQ", "S1-16") == pytest.approx(15.0)
    assert [line.runs for line in beside(4.0, 60.0).lines] == [3, 3]


def test_a_figure_that_some_runs_lack_is_the_median_of_the_others() -> None:
    """CPU time that only one round has is reported as that round's."""
    (line,) = medians([run("url", "S1-16", per_s=10.0), run("url", "S1-16", per_s=30.0, cpu_us=5.0)])
    assert line.figures == {"per_s": 20.0, "cpu_us": 5.0}


@pytest.mark.parametrize(("peer_us", "holds"), [(60.0, True), (59.0, False)])
def test_floor_is_judged_against_rabbitmq_of_the_same_run(peer_us: float, holds: bool) -> None:
    """The floor holds at fifteen times; below, the report says in capitals that it is broken."""
    found = beside(4.0, peer_us)
    (standing,) = found.standings()
    assert standing.holds is holds
    assert ("BROKEN" not in goals_text(found)) is holds


@pytest.mark.parametrize(("found_us", "said"), [(1.5, "reached"), (3.02, "not reached: 2.0 times")])
def test_a_goal_is_judged_as_it_stands(found_us: float, said: str) -> None:
    """A goal is reached or missed by a factor, whatever RabbitMQ takes."""
    (verdict,) = beside(found_us, 60.0).verdicts()
    assert verdict.text == said
    assert verdict.reached is said.startswith("reached")


def test_of_a_rate_more_is_better() -> None:
    """Half of a rate misses its goal by a factor of two."""
    drain = next(one for one in beside(250e3, 33e3, "S7", "drain_per_s").verdicts())
    assert drain.text == "not reached: 2.0 times"


def test_a_latency_is_judged_beside_the_relays() -> None:
    """The latency as a multiple of the bare relay's is a figure of its own."""
    found = measured(run("SlotMQ", "S6-16", p50_us=120.0), run("relay", "S6-16", p50_us=100.0))
    assert [one.found for one in found.verdicts()] == [pytest.approx(1.2)]


def test_no_floor_is_judged_without_rabbitmq() -> None:
    """Floors are ratios to RabbitMQ; goals are judged without it."""
    alone = measured(run("SlotMQ", "S1-16", cpu_us=1.0))
    assert not alone.standings()
    assert "not judged" in goals_text(alone)
    assert [one.reached for one in alone.verdicts()] == [True]


def test_interpreted_is_judged_where_nothing_was_compiled() -> None:
    """The compiled broker is judged; without it the interpreted one."""
    assert beside(4.0, 60.0).ours == "SlotMQ"
    assert measured(run("SlotMQ interpreted", "S1-16", cpu_us=4.0)).ours == "SlotMQ interpreted"


def test_broker_whose_processes_are_not_visible_has_a_rate_and_no_cpu() -> None:
    """A broker given by URL without a pid has dashes, not zeros."""
    row = next(line for line in report_text(measured(run("url", "S1-16", per_s=1000.0))).splitlines() if "url" in line)
    assert row.split() == ["url", "1,000", "-", "-", "-", "-", "-", "1"]


def test_limits_stand_below_the_brokers() -> None:
    """The relay follows all brokers, then the append loop with its batch size, then the least calls."""
    found = measured(
        run("relay", "S3-16", per_s=9e6, cpu_us=0.05),
        run("SlotMQ", "S3-16", per_s=1e5, cpu_us=5.0),
        append_limits={"S3-16": {"per_s": 3e5, "cpu_us": 0.2, "batch": 500}},
        least_calls={"S3-16": {"reads": 0.002, "writes": 0.003}},
    )
    names = [line.strip().split("  ")[0] for line in report_text(found).splitlines()[2:]]
    assert names == ["SlotMQ", "limit: bare relay", "limit: append, 500 a sync", "limit: least reads + writes"]


def test_every_goal_and_floor_has_a_row() -> None:
    """Every goal has a scenario that is measured, and every scenario of the table exists."""
    names = {row.name for row in rows(GROUPS)}
    assert {goal.scenario for goal in GOALS} | set(FLOORS) <= names
    assert list(titles(rows(GROUPS)))[-1] == "S4-1024-full"
    assert {kind(name) for name in names} == set(GROUPS)


def test_rows_of_one_group_are_picked() -> None:
    """`--only S3` selects both sizes; bodies of several frames and publishers at full speed are groups of their own."""
    assert [row.name for row in rows(["S3"])] == ["S3-16", "S3-1024"]
    assert [row.stage for row in rows(["large"])] == ["S2-204800", "S2-1048576", "S2-16777216", "S3-204800"]


def test_a_broker_by_url_is_judged_where_there_is_no_slotmq() -> None:
    """A broker given by URL is judged when SlotMQ is missing; RabbitMQ is the reference."""
    assert measured(run("RabbitMQ", "S1-16", cpu_us=30.0), run("LavinMQ", "S1-16", cpu_us=2.0)).ours == "LavinMQ"
