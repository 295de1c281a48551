"""The verbs of the control socket about the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.net.control_request import ControlRefused, Request
from broker.net.control_verbs.cluster import ASKS_DATABASE, cluster_verbs, refused_while_away


class Node:
    """Stands in for the node: the others are b, which lives, and c, which is dead."""

    def facts(self) -> Mapping[str, Any]:
        """Return this node and the others."""
        return {"node": "a", "nodes": [{"node": "a"}, {"node": "b"}, {"node": "c"}]}

    async def count_out_now(self, name: str) -> bool:
        """Count out c."""
        return name == "c"


async def test_a_dead_node_is_counted_out() -> None:
    """The node of the request is counted out, and its name is the answer."""
    assert await cluster_verbs(Node())["cluster_leave"](Request({"node": "c"})) == {"node": "c"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a", "'a' is this node"), ("b", "node 'b' lives"), ("d", "no node 'd'")],
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


def test_what_waits_for_the_database_is_refused_while_it_is_away() -> None:
    """The reason is told at once; afterwards the verb is done as ever."""
    facts: dict[str, Any] = {"database_ms": None, "reason": "Connection refused"}
    node = Node()
    node.facts = lambda: facts  # type: ignore[method-assign] # the test changes them
    purge = refused_while_away(node, dict.fromkeys(ASKS_DATABASE, lambda _: "done"))["purge_queue"]
    with pytest.raises(ControlRefused, match="database of the cluster cannot be reached: Connection refused"):
        purge(Request({}))
    facts["database_ms"] = 0.5
    assert purge(Request({})) == "done"
