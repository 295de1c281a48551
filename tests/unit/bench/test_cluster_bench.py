"""The benchmark of the cluster: its cases, its processes and its verdicts."""

from __future__ import annotations

from bench.cluster.suite import SpreadLoad, cases, goals
from bench.run import Run
from broker.perf.peer import Address
from broker.perf.receiver import ReceiverPace
from broker.perf.spool import Material


def test_every_case_has_a_key_of_its_own() -> None:
    """A kept run tells its cases apart, and each part but the fail-over has cases."""
    for part in ("paths", "latency", "nodes", "queues"):
        found = cases(part, 100_000)
        assert found
        assert len({(case.name, case.size) for case in found}) == len(found)
        assert all(max(case.publish_at + case.consume_at) < max(case.nodes, 1) for case in found)


def run_of(*rows: tuple[str, str, float, float]) -> Run:
    """Return a run with these rates and CPU times."""
    run = Run("cluster")
    for part, name, per_s, broker_us in rows:
        run.add(part, {"per_s": per_s, "broker_us": broker_us, "p50_us": 1500.0, "p99_us": 2e6}, name=name, size=100)
    return run


def test_goals_are_rates_ratios_and_the_time_of_a_fail_over() -> None:
    """Each goal is judged by what the run has."""
    run = run_of(
        ("paths", "one broker, its own log", 100_000.0, 5.0),
        ("paths", "cluster, same node", 70_000.0, 9.0),
        ("paths", "cluster, from A to B", 60_000.0, 11.0),
    )
    run.add("failover", {"first_s": 5.5, "all_s": 5.6}, name="killed", size=100)
    assert [(goal.what, goal.found, goal.reached) for goal in goals(run)] == [
        ("A to B, 100 B, messages/s", "60,000", True),
        ("cluster, same node, 100 B, times one broker's CPU", "1.8", True),
        ("cluster, from A to B, 100 B, times one broker's CPU", "2.2", False),
        ("fail-over, s", "5.5", False),
    ]
    assert list(goals(Run("cluster"))) == []


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
    assert [share.load.address.port for share in load.publish_shares()] == [1, 2, 3]
    assert [share.load.address.port for share in load.consume_shares()] == [2, 3]
