"""What goes wrong in a run. Each fault is over when its function returns, and returns what it did."""

from __future__ import annotations

import time

from tests.cluster.checker.run import Run
from tests.cluster.checker.system import LEASE_MS

LEASE_S = LEASE_MS / 1000


def kill_node(run: Run) -> str:
    """Kill a node with -9, and start it again: at once, or after its lease."""
    name = run.random.choice(list(run.system.nodes))
    pause_s = run.random.choice((0.0, LEASE_S, 3 * LEASE_S))
    run.system.kill(name)
    time.sleep(pause_s)
    run.system.start()
    return f"{name} killed for {pause_s:g} s"


def cut_clients(run: Run) -> str:
    """End the connections of some clients without a word."""
    members = [member for member in run.members if run.random.random() < 0.4]
    for member in members:
        member.cut()
    return f"{len(members)} clients cut"
