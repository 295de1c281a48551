"""The benchmark of the overlay: its checks, and what it makes of its figures."""

from __future__ import annotations

from typing import Any

import pytest

from bench.overlay import paper
from bench.overlay.crashes import (
    Arrivals,
    Faults,
    Numbering,
    faults_of,
    longest_dip_s,
)
from bench.overlay.load import falls_behind
from bench.overlay.plan import Plan
from bench.run import Run

NUMBERING = Numbering(start_ns=1_000_000, step_ns=500_000, topics=4)


# -- publishers and checks --------------------------------------------------------------------------------------------


def bodies(*numbers: int) -> bytes:
    """Return bodies with the stamps of messages that were due, one after the other."""
    dues = [NUMBERING.start_ns + number * NUMBERING.step_ns for number in numbers]
    return b"".join(due_ns.to_bytes(8, "big") for due_ns in dues)


def arrived(*numbers: int) -> Arrivals:
    """Return what a connection received."""
    arrivals = Arrivals(0)
    arrivals.record(bodies(*numbers), 0, 8, len(numbers))
    return arrivals


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((5, 9, 13, 17), Faults()),
        ((5, 9, 17), Faults(missing=1)),
        ((5, 9, 13), Faults(missing=1)),
        ((5, 9, 13, 13, 17), Faults(double=1)),
        ((5, 13, 9, 17), Faults(disordered=1)),
        ((1, 5, 9, 13, 17), Faults()),
    ],
)
def test_a_subscriber_gets_each_message_once_from_its_first_one(numbers: tuple[int, ...], found: Faults) -> None:
    """Messages missing within or at the end, duplicates and late ones are counted; those before the first one are not
    due.
    """
    assert faults_of(numbers, 4, 18) == found
    assert arrived(*numbers).faults(NUMBERING, [1], [18]) == found


def test_the_longest_dip_is_at_a_stretch() -> None:
    """Buckets with at least half of the due messages end a dip."""
    assert longest_dip_s([10, 4, 0, 5, 0, 0, 4, 9], 10) == pytest.approx(0.3)


# -- where the streams go ---------------------------------------------------------------------------------------------


def test_saturated_brokers_are_told() -> None:
    """Brokers that take in, or deliver, much less than is due are saturated."""
    due = {"published_per_s": 8_000.0, "delivered_per_s": 4_000.0}
    found = [
        falls_behind(due | more, 4_000, Plan())
        for more in ({}, {"published_per_s": 6_000.0}, {"delivered_per_s": 3_000.0})
    ]
    assert found == [False, True, True]


# -- figures ----------------------------------------------------------------------------------------------------------


PROPAGATION, FLOODING = ({"scheme": scheme} for scheme in ("propagation", "flooding"))


def rows() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the part, key and figures of cells in which everything is as the paper says."""
    load = [
        ("load", {**key, "publishers": count}, {"pb_cpu": share * count, "sb_cpu": sb})
        for key, share, sbs in ((PROPAGATION, 1e-5, (0.1, 0.1)), (FLOODING, 3e-5, (0.1, 0.4)))
        for count, sb in zip((2_000, 12_000), sbs, strict=True)
    ]
    hops = [
        ("hops", {"hops": count}, {"delivery_ms": 1.0 + count, "local_ms": 5.0, "global_ms": 7.0 + 2 * count})
        for count in (1, 4, 7)
    ]
    leaves = [
        ("leaves", {**key, "leaves": count}, {"pb": 0.1, "ib": 0.1 * count, "sb": 0.2})
        for key in (PROPAGATION, FLOODING)
        for count in (1, 7)
    ]
    failure = {
        "missing": 0, "double": 0, "disordered": 0, "delivered": 100, "late_due_per_s": 2.0, "dip_s": 0.2,
        "rates": {"first": [5] * 20, "fourth": [0] * 14 + [2] * 6},
        "cpu": {
            "ib1": [0.04] * 4 + [0.0] * 16, "ib2": [0.04] * 8 + [0.0] * 12,
            "ib3": [0.0] * 4 + [0.04] * 4 + [0.08] * 12,
        },
        "events": [(4.0, "ib1 killed"), (8.0, "ib2 killed"), (12.0, "fourth group"), (16.0, "ib1 back")],
    }  # fmt: skip
    cost = ("cost", {"form": "compiled", "size": 16}, {"s1_us": 2.0, "middle_us": 4.0, "times": 2.0})
    return [*load, *hops, *leaves, ("failure", {}, failure), cost]


def run_of(part: str = "", changes: dict[int, dict[str, Any]] | None = None) -> Run:
    """Return the run, with changed figures of some cells of a part."""
    run = Run("overlay", {"failures": []})
    at = 0
    for own, key, figures in rows():
        run.add(own, figures | ((changes or {}).get(at, {}) if own == part else {}), **key)
        at += own == part
    return run


def wrong(run: Run) -> list[str]:
    """Return the shapes that another one was found in place of."""
    return [line.split(" | ")[1] for line in paper.verdicts(run).splitlines() if line.endswith("| **not reached** |")]


def test_every_shape_of_the_paper_can_be_found() -> None:
    """Figures as the paper has them agree in every verdict; without figures there is none."""
    found = paper.verdicts(run_of()).splitlines()[2:]
    assert {line.split(" | ")[0] for line in found} == {"| load", "| hops", "| leaves", "| failure", "| cost"}
    assert wrong(run_of()) == []
    assert paper.verdicts(Run("overlay")) == ""


@pytest.mark.parametrize(
    ("part", "changes", "shape"),
    [
        ("load", {1: {"sb_cpu": 0.2}}, "sb's CPU stays constant with propagation"),
        ("load", {3: {"sb_cpu": 0.12}}, "sb's CPU grows with flooding"),
        ("load", {2: {"sb_cpu": 0.2}}, "sb's CPU is the same"),
        ("load", {3: {"pb_cpu": 0.13}}, "pb's CPU grows"),
        ("hops", {2: {"local_ms": 9.0}}, "a start under a cover"),
        ("hops", {1: {"delivery_ms": 8.0}}, "delivery latency grows linearly"),
        ("hops", {2: {"global_ms": 9.0}}, "a start without a cover grows linearly"),
        ("leaves", {1: {"pb": 0.2}}, "pb's CPU does not grow with the leaves, propagation"),
        ("leaves", {3: {"sb": 0.3}}, "sb's CPU does not grow with the leaves, flooding"),
        ("failure", {0: {"double": 1}}, "nothing is lost"),
        ("failure", {0: {"dip_s": 1.1}}, "clients' rates go on"),
        ("cost", {0: {"middle_us": 4.1}}, "a forwarded message of 16 B"),
    ],
)
def test_a_shape_that_is_another_one_is_told(part: str, changes: dict[int, dict[str, Any]], shape: str) -> None:
    """Each verdict changes with the figures that it is about."""
    found = wrong(run_of(part, changes))
    assert found
    assert shape in found[0]


def test_phases_leave_out_the_seconds_of_their_events() -> None:
    """A phase has the medians of its quiet seconds, of rates and of CPU time."""
    phases = paper.phases_of(run_of().row("failure"))
    assert [phase["phase"] for phase in phases] == ["begin", "ib1 killed", "ib2 killed", "fourth group", "ib1 back"]
    assert [phase["ib3"] for phase in phases] == [0.0, 0.04, 0.08, 0.08, 0.08]
    assert [phase["fourth"] for phase in phases] == [0, 0, 0, 2, 2]
