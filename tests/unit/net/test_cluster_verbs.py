"""The verbs of the control socket about the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.amqp.errors import BrokerError
from broker.net.control_request import ControlRefused, Request
from broker.net.control_verbs.cluster import cluster_verbs


class Node:
    """Stands in for the node: the others are b, which lives, and c, which is dead."""

    def facts(self) -> Mapping[str, Any]:
        """Return this node and the others."""
        return {"node": "a", "nodes": [{"node": "a"}, {"node": "b"}, {"node": "c"}, {"node": "e"}]}

    async def count_out_now(self, name: str) -> bool:
        """Count out c; the database is away when e is asked for."""
        if name == "e":
            raise BrokerError("node 'e' cannot be counted out now: Connection refused")
        return name == "c"


async def test_a_dead_node_is_counted_out() -> None:
    """The node of the request is counted out, and its name is the answer."""
    assert await cluster_verbs(Node())["cluster_leave"](Request({"node": "c"})) == {"node": "c"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a", "'a' is this node"), ("b", "node 'b' lives"), ("d", "no node 'd'"), ("e", "cannot be counted out")],
)
async def test_no_other_node_is_counted_out(name: str, reason: str) -> None:
    """A node that lives, this node and an unknown one are refused, each with its reason."""
    with pytest.raises(ControlRefused, match=reason):
        await cluster_verbs(Node())["cluster_leave"](Request({"node": name}))


def test_facts_are_the_answer() -> None:
    """`cluster` answers what the node knows."""
    assert cluster_verbs(Node())["cluster"](Request({})) == Node().facts()


def test_a_broker_by_itself_refuses() -> None:
    """A broker that is no node says so."""
    with pytest.raises(ControlRefused, match="no node of a cluster"):
        cluster_verbs(None)["cluster"](Request({}))
