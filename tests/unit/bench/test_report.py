"""Medians, ratios and the verdict on the goal."""

from __future__ import annotations

import pytest

from bench import report
from bench.run import Run
from bench.scenario import SCENARIOS

PERSISTENT = tuple(one for one in SCENARIOS if one.persistent)


def run(broker: str, scenario: str, cpu_us: float | None) -> Run:
    """Return a run of 1000 messages in a second at `cpu_us` each."""
    return Run(
        broker=broker,
        scenario=scenario,
        messages=1000,
        warm_up=0,
        seconds=1.0,
        cpu_s=None if cpu_us is None else cpu_us / 1000,
        rss_bytes=0,
        peak_rss_bytes=0,
        disk_bytes=0,
        publisher_cpu_s=0.0,
        consumer_cpu_s=0.0,
        confirm_frames=0,
        walked=0,
        blocked=0,
    )


def runs(ours_us: float, peer_us: float) -> list[Run]:
    """Return three runs of each broker in both persistent scenarios; one outlier each."""
    return [
        run(broker, scenario.name, cost_us * noise)
        for scenario in PERSISTENT
        for noise in (1.0, 9.0, 0.9)
        for broker, cost_us in (("SlotMQ", ours_us), ("RabbitMQ", peer_us))
    ]


def test_ratio_is_that_of_the_medians() -> None:
    """One outlier does not move the ratio of messages per broker CPU-second."""
    table = report.lines(runs(ours_us=4.0, peer_us=60.0))
    assert report.ratio(table, PERSISTENT[0].name) == pytest.approx(15.0)


@pytest.mark.parametrize(("peer_us", "reached"), [(20.0, True), (19.0, False)])
def test_verdict_says_whether_five_times_is_reached(peer_us: float, reached: bool) -> None:
    """At five times the goal is reached, below it is not, and the sentence says so in capitals."""
    table = report.lines(runs(ours_us=4.0, peer_us=peer_us))
    verdict = report.verdict(table, SCENARIOS, synced=True, peer_installed=True)
    assert verdict.reached is reached
    assert ("NOT REACHED" in verdict.text) is not reached
    assert f"{peer_us / 4:.1f} times" in verdict.text


def test_one_size_below_the_goal_is_not_reached() -> None:
    """Both sizes have to reach the goal."""
    table = report.lines(
        [
            run("SlotMQ", PERSISTENT[0].name, 2.0),
            run("RabbitMQ", PERSISTENT[0].name, 60.0),
            run("SlotMQ", PERSISTENT[1].name, 20.0),
            run("RabbitMQ", PERSISTENT[1].name, 60.0),
        ]
    )
    assert report.verdict(table, SCENARIOS, synced=True, peer_installed=True).reached is False


@pytest.mark.parametrize(
    ("synced", "installed", "kept", "why"),
    [
        (False, True, runs(1.0, 60.0), "without fsync"),
        (True, False, runs(1.0, 60.0)[::2], "not installed"),
        (True, True, runs(1.0, 60.0)[::2], "no figures of both"),
    ],
)
def test_verdict_is_open_when_it_cannot_be_judged(synced: bool, installed: bool, kept: list[Run], why: str) -> None:
    """Without fsync, without the peer or without its figures nothing is claimed."""
    verdict = report.verdict(report.lines(kept), SCENARIOS, synced=synced, peer_installed=installed)
    assert verdict.reached is None
    assert "NOT JUDGED" in verdict.text
    assert why in verdict.text


def test_broker_whose_processes_are_not_visible_has_a_rate_and_no_cpu() -> None:
    """A broker given by URL without a pid is listed with dashes, not with zeros."""
    table = report.lines([run("url", PERSISTENT[0].name, None)])
    text = report.table_text(table, PERSISTENT)
    row = next(line for line in text.splitlines() if line.strip().startswith("url"))
    assert "1,000" in row
    assert "-" in row
