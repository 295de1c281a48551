"""What the demo of the overlay shows of a broker."""

from typing import Any

from demo.overlay.gauges import gauge_of
from demo.overlay.picture import running
from demo.overlay.table import COLUMNS, cells

INNER: dict[str, Any] = {
    "broker": "middle-1",
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
    row = dict(zip(COLUMNS, cells("middle-1", gauge_of(INNER)), strict=True))
    assert row["links"] == "1/2"
    assert row["knows (V_b)"] == "europe:4"
    assert (row["patterns"], row["messages on"], row["left out"], row["not sure, so on"]) == ("5", "10", "7", "2")
    assert (row["MB out"], row["lag"]) == ("1.5", "")


def test_counts_run_on_through_a_restart() -> None:
    """A process that was killed counts from 0 again."""
    up = [gauge_of({**INNER, "matched": count, "flooded": 0}) for count in (5, 9)]
    again = [gauge_of({**INNER, "matched": count, "flooded": 0}) for count in (2, 4)]
    dead = type(up[0])("killed")
    assert running([*up, dead, *again]) == [5, 9, 9, 11, 13]
