"""A bounded run of each fuzzer, with the same inputs each time; `python -m fuzz.connection --seed N` tries others."""

from __future__ import annotations

import pytest

from fuzz import connection, framing, http, log, mqtt, tables, vhost
from fuzz.campaign import Target, run

INPUTS = {
    "connection": 10_000,
    "framing": 10_000,
    "tables": 10_000,
    "log": 1_000,
    "vhost": 700,
    "http": 1_000,
    "mqtt": 3_000,
}
# The outcomes that a campaign must reach to be useful.
REACHED = {
    "connection": {"running", "closing   connection.close 502", "closing   connection.close 505"},
    "framing": {"whole", "rest", "too large", "wrong end"},
    "http": {f"answered {status}" for status in (200, 206, 400, 404, 405, 416)}
    | {f"ended {status}" for status in (400, 413, 431, 501, 505)},
    "log": {"store.tail_cut", "store.quarantined", "refused", "unharmed"},
    "mqtt": {"open", "waits", "0x81", "0x82", "0x84", "0x95"},
    "vhost": {"channel 403", "channel 404", "channel 406", "connection 540"},
    "tables": {"table read", "table refused", "header read", "header refused"},
}


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("connection", connection.check),
        ("framing", framing.check),
        ("http", http.check),
        ("log", log.check),
        ("mqtt", mqtt.check),
        ("tables", tables.check),
        ("vhost", vhost.check),
    ],
)
def test_fuzz(name: str, target: Target) -> None:
    """No input of a client and no damage of a disk breaks an assertion, and the inputs reach the required outcomes."""
    outcomes = run(target, inputs=INPUTS[name], seed=1)
    assert set(outcomes) >= REACHED[name]
