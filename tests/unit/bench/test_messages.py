"""Scenarios, floors and goals of the main suite, and their presentation."""

from __future__ import annotations

from typing import Any

import pytest

from bench.messages.limits import Limits
from bench.messages.rows import rows
from bench.messages.tables import TABLES, ours, times_of_peer, verdicts
from bench.run import Run
from bench.stage import quick

MACHINE = {
    "cpu": "a processor", "cores": 2, "memory_gib": 1.0, "kernel": "6", "python": "3.11", "file_system": "ext4",
    "fdatasync_us": 100, "load": 0.0,
}  # fmt: skip


def run_of(*found: tuple[str, str, dict[str, float]], **facts: Any) -> Run:
    """Return a run with these figures of brokers in scenarios."""
    run = Run("messages", {
        "machine": MACHINE, "compiled": True, "quick": False, "plan": {"rounds": 1}, "products": {"SlotMQ": "SlotMQ 1"},
        "steps_ns": [50.0, 60.0], "titles": dict.fromkeys([scenario for _, scenario, _ in found], "a title"), **facts,
    })  # fmt: skip
    for broker, scenario, figures in found:
        run.add(scenario, figures, broker=broker)
    return run


def beside(mine: float, peer: float, scenario: str = "S1-16", figure: str = "cpu_us") -> Run:
    """Return three rounds each of SlotMQ and of RabbitMQ, with one outlier each."""
    noise = (1.0, 9.0, 0.9)
    return run_of(
        *(("SlotMQ", scenario, {figure: mine * one}) for one in noise),
        *(("RabbitMQ", scenario, {figure: peer * one}) for one in noise),
    )


def test_ratio_is_that_of_the_medians() -> None:
    """An outlier does not matter; the ratio says how many times less than RabbitMQ a message costs."""
    assert times_of_peer(beside(4.0, 60.0), "SlotMQ", "S1-16") == pytest.approx(15.0)


@pytest.mark.parametrize(("peer_us", "said"), [(60.0, "| reached |"), (59.0, "| **not reached** |")])
def test_a_floor_is_judged_against_rabbitmq_of_the_same_run(peer_us: float, said: str) -> None:
    """The floor holds at fifteen times; without RabbitMQ nothing is judged."""
    assert said in TABLES["floors"](beside(4.0, peer_us))
    assert TABLES["floors"](run_of(("SlotMQ", "S1-16", {"cpu_us": 1.0}))) == ""


@pytest.mark.parametrize(("found_us", "said"), [(1.5, "| reached |"), (3.02, "| **not reached** |")])
def test_a_goal_is_judged_as_it_stands(found_us: float, said: str) -> None:
    """A goal is reached or missed, whatever RabbitMQ takes; of a rate more is better."""
    assert said in TABLES["goals"](beside(found_us, 60.0))
    assert "**not reached**" in TABLES["goals"](beside(250e3, 33e3, "S7", "drain_per_s"))


def test_a_quick_run_does_not_judge_what_depends_on_numbers() -> None:
    """A small backlog says nothing about a large one."""
    found = ("SlotMQ", "S7", {"restart_s": 0.1})
    assert len(verdicts(run_of(found))) == 1
    assert verdicts(run_of(found, quick=True)) == []


def test_the_judged_broker_is_ours_compiled_then_interpreted_then_any() -> None:
    """RabbitMQ is the reference and never judged; a broker given by URL is, where there is no SlotMQ."""
    found = [(name, "S1-16", {"cpu_us": 4.0}) for name in ("RabbitMQ", "LavinMQ", "SlotMQ interpreted", "SlotMQ")]
    assert [ours(run_of(*found[:count])) for count in (4, 3, 2)] == ["SlotMQ", "SlotMQ interpreted", "LavinMQ"]


def test_broker_whose_processes_are_not_visible_has_a_rate_and_no_cpu() -> None:
    """A broker given by URL without a pid has dashes, not zeros."""
    line = TABLES["cost"](run_of(("url", "S1-16", {"per_s": 1000.0}))).splitlines()[-1]
    assert line == "| S1-16: a title | - / 1,000 | - |"


def test_every_table_can_be_made_of_a_run_that_measured_little() -> None:
    """A run of one scenario without RabbitMQ gives short but valid tables; other figures have the relay below."""
    run = run_of(
        ("relay", "S6-16", {"p50_us": 90.0}), ("SlotMQ", "S6-16", {"p50_us": 117.0, "reads": 1.0, "writes": 1.07}),
    )  # fmt: skip
    made = {name: make(run) for name, make in TABLES.items()}
    assert "2 cores, a processor" in made["machine"]
    assert made["other"].splitlines()[-2:] == ["| SlotMQ | 117 | - | - | 2.07 |", "| (bare relay) | 90 | - | - | - |"]


def test_rows_of_one_group_are_picked() -> None:
    """`--only S3` selects both sizes; large bodies have brokers of their own; a quick run has few bindings."""
    assert [row.name for row in rows(["S3"])] == ["S3-16", "S3-1024"]
    assert [row.stage for row in rows(["large"])] == ["S2-204800", "S2-1048576", "S2-16777216", "S3-204800"]
    assert [row.title.split()[0] for row in rows(["S5", "bindings"], quick(Limits()))] == ["3,000", "3,000"]
