"""The figures of a broker that the demo of the overlay shows."""

from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs the extra [demo]")

from demo.overlay import COLUMNS, cells, cumulative, passed

INNER: dict[str, Any] = {
    "state": "up",
    "links": [
        {"peer": "europe", "state": "up", "sent_bytes": 1_500_000},
        {"peer": "america", "state": "down", "sent_bytes": 0},
    ],
    "leaves": [{"leaf": "europe", "time": 4}],
    "patterns": [{"count": 3}, {"count": 2}],
    "matched": 10,
    "filtered": 7,
    "flooded": 2,
}


def test_a_row_has_what_the_broker_says() -> None:
    """Links that are down do not count; a leaf's columns stay empty for a broker in the middle."""
    row = dict(zip(COLUMNS, cells("middle-1", INNER), strict=True))
    assert row["links"] == "1/2"
    assert row["knows (V_b)"] == "europe:4"
    assert (row["patterns"], row["forwarded"], row["filtered"], row["flooded"]) == ("5", "10", "7", "2")
    assert (row["MB out"], row["lag"]) == ("1.5", "")


def test_counts_run_on_through_a_restart() -> None:
    """A process that was killed counts from 0 again."""
    facts: list[dict[str, Any]] = [
        {"matched": 5},
        {"matched": 7, "flooded": 2},
        {"state": "killed"},
        {"matched": 2},
        {"matched": 4},
    ]
    assert cumulative(map(passed, facts)) == [5, 9, 9, 11, 13]
    assert cumulative([5, 9, 2, 4]) == [5, 9, 11, 13]
