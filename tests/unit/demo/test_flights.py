"""Routing keys and bodies made from a small data frame."""

import json
from pathlib import Path

import pytest

from demo.flights import checksum, json_bodies, read_flights, routing_keys, write_flights

pd = pytest.importorskip("pandas", reason="needs the extra [demo]")

FLIGHTS = [
    # dep_time, arr_delay, outcome
    (517.0, 11.0, "on-time"),
    (542.0, 16.0, "late"),
    (542.0, 15.0, "on-time"),
    (None, None, "cancelled"),
    (1525.0, None, "on-time"),  # diverted
    (600.0, -3.0, "on-time"),
]
FRAME = pd.DataFrame(
    {
        "dep_time": [dep_time for dep_time, _, _ in FLIGHTS],
        "arr_delay": [arr_delay for _, arr_delay, _ in FLIGHTS],
        "carrier": "UA",
        "tailnum": ["N14228", None, 'é/"\t', "N1", "N2", "N3"],
        "origin": "EWR",
        "dest": "IAH",
    }
)


def test_outcome_follows_departure_and_delay() -> None:
    """A flight without a departure is cancelled, with a delay above 15 minutes late, otherwise on-time."""
    assert routing_keys(FRAME) == [f"flight.UA.EWR.IAH.{outcome}" for _, _, outcome in FLIGHTS]


def test_body_has_all_columns_with_null_for_na_and_whole_numbers() -> None:
    """A body is the row as JSON, with 517 instead of 517.0 and null for missing values."""
    bodies = [json.loads(body) for body in json_bodies(FRAME)]
    assert bodies[0] == {
        "dep_time": 517,
        "arr_delay": 11,
        "carrier": "UA",
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
    }
    assert (bodies[1]["tailnum"], bodies[2]["tailnum"]) == (None, 'é/"\t')
    assert (bodies[3]["dep_time"], bodies[3]["arr_delay"]) == (None, None)
    assert isinstance(bodies[0]["dep_time"], int)


def test_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """Reading may start and end at any row."""
    keys = routing_keys(FRAME)
    bodies = list(json_bodies(FRAME))
    path = tmp_path / "flights"
    checksums = write_flights(path, FRAME, keys)
    rows = list(zip(range(len(keys)), keys, bodies, strict=True))
    assert [list(read_flights(path, first, 6)) for first in range(7)] == [rows[first:] for first in range(7)]
    assert list(read_flights(path, 1, 4)) == rows[1:4]
    assert checksums == [checksum(key.encode(), body) for _, key, body in rows]
