"""What the benchmark of the cluster runs, and the tables and verdicts that it makes of it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from bench.cluster.cases import PARTS, Case, cases
from bench.cluster.peers import Received, payload
from bench.cluster.report import medians, tables, verdicts
from bench.cluster.spread import SpreadLoad
from broker.perf.peer import Address
from broker.perf.receiver import ReceiverPace
from broker.perf.spool import Material


def result(case: Case, *rates: float, **figures: float) -> dict[str, Any]:
    """Return a case with rounds of these rates."""
    rounds = [{"per_s": rate, "broker_us": 10.0, "p50_us": 1500.0, "p99_us": 2e6, **figures} for rate in rates]
    return {**asdict(case), "rounds": rounds}


def test_every_case_has_a_key_of_its_own() -> None:
    """A kept run tells its cases apart, and each part but the fail-over has cases."""
    found = cases(100_000)
    assert len({case.key for case in found}) == len(found)
    assert {case.part for case in found} == set(PARTS) - {"failover"}
    assert all(max(case.publish_at + case.consume_at) < max(case.nodes, 1) for case in found)


def test_tables_show_medians() -> None:
    """A table has the median of all rounds, and times in readable units."""
    content = {"cases": [result(Case("paths", "one broker, its own log", messages=1), 10.0, 1000.0, 90_000.0)]}
    assert medians(content)[0]["per_s"] == 1000.0
    assert tables(content)["paths"].splitlines()[2:] == [
        "| one broker, its own log | 100 | 1,000 | 10.0 | - | 1.5 ms | 2 s |"
    ]


def test_a_case_that_failed_has_its_reason_in_the_table() -> None:
    """A failed case has no figures and no verdict; the reason takes their place."""
    failed = {**asdict(Case("paths", "cluster, from A to B", 2)), "rounds": [], "failure": "no queue"}
    assert tables({"cases": [failed]})["paths"].endswith("| cluster, from A to B | 100 | no queue |")
    assert verdicts({"cases": [failed], "lease_ms": 3000}) == []


def test_verdicts_name_each_goal() -> None:
    """Rates, ratios and the time of a fail-over are compared with the goals."""
    content = {
        "lease_ms": 3000,
        "cases": [
            result(Case("paths", "one broker, its own log"), 100_000.0, broker_us=5.0),
            result(Case("paths", "cluster, same node", 2), 70_000.0, broker_us=9.0),
            result(Case("paths", "cluster, from A to B", 2), 60_000.0, broker_us=11.0),
            result(Case("peers", "pgqueuer", peer="pgqueuer"), 3_000.0),
            {**asdict(Case("failover", "killed", 2)), "rounds": [{"first_s": 5.5, "all_s": 5.6}]},
        ],
    }
    assert verdicts(content) == [
        "A to B, 100 B: 60,000 messages/s, goal 60,000: met",
        "A to B, 100 B: 20.0 times the best job queue, goal 20: met",
        "same node, 100 B: 1.8 times one broker's CPU, goal 2: met",
        "A to B, 100 B: 2.2 times one broker's CPU, goal 2: MISSED",
        "fail-over: 5.50 s, goal 5 s: MISSED",
    ]


def test_processes_of_a_load_take_the_nodes_in_turn() -> None:
    """Each process of publishers and of consumers connects to the next node."""
    nodes = tuple(Address("127.0.0.1", port) for port in (1, 2, 3))
    load = SpreadLoad(
        nodes[0],
        Material("", ("q",), 16),
        producers=3,
        queues=(("q",), ("q",)),
        demand=ReceiverPace(1, 16, None),
        processes=3,
        publish_at=nodes,
        consume_at=nodes[1:],
    )
    assert [share.address.port for share in load.publish_shares()] == [1, 2, 3]
    assert [share.address.port for share in load.consume_shares()] == [2, 3]


def test_a_worker_counts_what_it_received_and_ends() -> None:
    """The last expected message ends a worker, and its report has the ages of all."""
    ended = asyncio.Event()
    received = Received(2, ended.set)
    received.take(payload(100))
    assert not ended.is_set()
    received.take(payload(100))
    assert ended.is_set()
    assert received.report()["received"] == 2
    assert received.report()["p50_us"] >= 0
    assert len(payload(100)) == 100
