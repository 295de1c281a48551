"""Log lines about definitions that other nodes change: one line per change, also after the node was frozen."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until

pytestmark = pytest.mark.slow

CHANGES = 4


def versions(node: BrokerProcess) -> list[int]:
    """Return the versions that a node logged."""
    return [event["version"] for event in node.log_events() if event["event"] == "definitions.followed"]


def joins(node: BrokerProcess) -> int:
    """Return how often a node joined."""
    return sum(event["event"] == "node.joined" for event in node.log_events())


def test_each_change_is_logged_once(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """Policies and users change on one node, while another is counted out and joins again."""
    with Nodes(tmp_path, postgres_url, schema, "a", "b", "c") as nodes:
        a, b, c = nodes.by_name.values()

        def change(step: int) -> None:
            for number in range(CHANGES):
                definition = {"max-length": 10 * step + number}
                ask(a.folder, "set_policy", vhost="/", name=f"p{number}", pattern="x", definition=definition,
                    priority=0, apply_to="queues")  # fmt: skip
                ask(a.folder, "add_user", name=f"u{step}.{number}", password="secret", tags=[])

        nodes.errors_expected("c", "node.lost")
        change(1)
        c.running.send_signal(signal.SIGSTOP)
        try:
            change(2)  # the first of them waits until the frozen node is counted out
        finally:
            c.running.send_signal(signal.SIGCONT)
        wait_until(lambda: joins(c) == 2, "a new epoch")
        change(3)
        for node in (b, c):
            wait_until(lambda node=node: len(ask(node.folder, "list_users")) == 3 * CHANGES + 1, "all users")  # type: ignore[misc]
        assert 6 * CHANGES <= len(versions(b)) <= 6 * CHANGES + 3  # nodes that start may change something too
        assert len(versions(c)) <= 6 * CHANGES + 3
        assert all(sorted(set(found)) == found for found in (versions(b), versions(c)))
