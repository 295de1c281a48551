"""A node that dies while it changes a limit: the other one finishes what it began."""

from __future__ import annotations

import pytest

from tests.cluster.checker.conftest import MakeCluster
from tests.cluster.checker.system import System
from tests.cluster.proxy import Point, Then
from tests.deadline import wait_until

pytestmark = pytest.mark.fault

LIMITS = "SELECT count(*) FROM level WHERE max_length IS NOT NULL"


def dies_at(system: System, verb: str, **arguments: object) -> None:
    """Let node a die when every node follows the change and before PostgreSQL hears of the limits."""
    trap = system.proxies["a"].trap(r"\breplace_limits\(", Point.ASKED, Then.CUT, lambda: system.kill("a"))
    with pytest.raises(Exception, match="a"):
        system.ask("a", verb, **arguments)
    assert trap.done.wait(60)


def test_a_node_that_dies_leaves_no_limit_behind_and_takes_none_with_it(make_cluster: MakeCluster) -> None:
    """Both when a policy is set and when it is deleted: what is stored holds, though no one was answered."""
    system = make_cluster(2)
    system.ask("b", "declare_queue", queue="q", durable=True)
    dies_at(system, "set_policy", name="limit", pattern="^q$", definition={"max-length": 3}, apply_to="queues")
    wait_until(lambda: system.sql(LIMITS) == "1", "the limit holds")
    system.start()
    dies_at(system, "delete_policy", name="limit")
    wait_until(lambda: system.sql(LIMITS) == "0", "the limit is gone")
