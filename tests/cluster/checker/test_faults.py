"""A cluster keeps its promises whatever happens to its nodes, to PostgreSQL and to the network between them.

Clients of all kinds work on all nodes. After each fault work must continue and the tables must hold what the invariants
say; at the end the queues are drained, and the whole history is judged.
"""

from __future__ import annotations

import pytest

from tests.cluster.checker import faults
from tests.cluster.checker.conftest import MakeCluster
from tests.cluster.checker.run import Fault, Run
from tests.cluster.checker.system import System
from tests.cluster.proxy import Point

pytestmark = [pytest.mark.fault, pytest.mark.slow]

NAMED = [
    # (call, point, outcome): what the issue of an answer depends on
    ("commit", Point.SENT, "connection cut"),
    ("commit", Point.DONE, "connection cut"),
    ("commit", Point.DONE, "answer late"),
    ("commit", Point.DONE, "node killed"),
    ("commit", Point.SENT, "node frozen"),
    ("lease", Point.DONE, "connection cut"),
    ("lease", Point.DONE, "node frozen"),
    ("give_back", Point.SENT, "connection cut"),
    ("notify", Point.ASKED, "connection cut"),
    ("notify", Point.ASKED, "node killed"),
    ("beat", Point.DONE, "answer late"),
]

DEATHS = [
    ("commit", Point.ASKED),
    ("commit", Point.SENT),
    ("commit", Point.DONE),
    ("lease", Point.SENT),
    ("lease", Point.DONE),
    ("chunk", Point.ASKED),
    ("chunk", Point.DONE),
    ("give_back", Point.SENT),
    ("give_back", Point.DONE),
    ("notify", Point.ASKED),
]


def run_faults(system: System, seed: int, chosen: list[Fault], progress: int = 30) -> None:
    """Let the faults happen, with this many confirms and settlements after each, and judge."""
    run = Run(system, seed, progress=progress)
    run.begin()
    run.suffer(chosen, system.violations)
    run.end()


def test_faults_at_named_points_of_calls(make_cluster: MakeCluster) -> None:
    """An answer that is lost or late, and a node that dies or freezes, at each point of the calls that matter."""

    def at(call: str, point: Point, outcome: str) -> Fault:
        return lambda run: faults.at_call(run, run.random.choice("ab"), call, point, outcome)

    run_faults(make_cluster(2), 1, [at(*named) for named in NAMED])


@pytest.mark.parametrize(
    "deaths", [[death for death in DEATHS if death[1] is Point.DONE], pytest.param(DEATHS, marks=pytest.mark.torture)]
)
def test_deaths_at_named_points_of_the_data_path(make_cluster: MakeCluster, deaths: list[tuple[str, Point]]) -> None:
    """A node that is killed at each point of the calls with messages never comes back: another one has its messages."""

    def at(call: str, point: Point) -> Fault:
        return lambda run: faults.dies_at_call(run, call, point)

    run_faults(make_cluster(1), 1, [at(*death) for death in deaths])


@pytest.mark.parametrize(("seed", "nodes"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.torture)])
def test_random_faults(make_cluster: MakeCluster, seed: int, nodes: int) -> None:
    """Each kind of fault happens in one of the two runs."""
    run_faults(make_cluster(nodes), seed, list(dict.fromkeys(faults.CLUSTER))[seed - 1 :: 2])


@pytest.mark.torture
@pytest.mark.parametrize("seed", [1, 2])
def test_restores_of_the_database(make_cluster: MakeCluster, seed: int) -> None:
    """Messages confirmed before the copy was made stay, whatever was confirmed or settled since."""
    run_faults(
        make_cluster(2), seed, [faults.restore_dump, faults.kill_node, faults.restore_backup, faults.restore_dump]
    )


@pytest.mark.torture
@pytest.mark.parametrize("seed", [1, 2])
def test_promotions_of_a_synchronous_standby(make_cluster: MakeCluster, seed: int) -> None:
    """The primary dies under load, again and again; nodes die in between. What was confirmed is on the standby."""
    chosen = [
        faults.promote_standby,
        faults.kill_node,
        faults.promote_standby,
        faults.random_fault,
        faults.promote_standby,
    ]
    run_faults(make_cluster(2, standby=True), seed, chosen)


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 125))
def test_five_hundred_faults_and_a_million_messages(make_cluster: MakeCluster, seed: int) -> None:
    """Twenty random faults per seed, and 2,000 confirmed messages after each."""
    chosen = [faults.random_fault] * 20
    run_faults(make_cluster(2 + seed % 3), seed, chosen, progress=2000)
