"""The checker on one broker without a cluster, which is killed: the harness and the analysis find nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.checker.faults import cut_clients, kill_node
from tests.cluster.checker.run import Run
from tests.cluster.checker.system import System

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def test_one_broker_is_correct_when_it_is_killed(tmp_path: Path) -> None:
    """A broker with its own log keeps its promises over kills and cut connections."""
    system = System(tmp_path, ["a"])
    try:
        system.start()
        run = Run(system, seed=1)
        run.begin()
        run.suffer([kill_node, cut_clients, kill_node])
        run.end()
        assert not system.nodes["a"].errors()
    finally:
        system.stop()
