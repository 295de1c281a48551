"""Operations about the cluster, and what a node refuses."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation, carry_out
from broker.operations.process import LeaveCluster, Nothing, cluster, cluster_leave
from broker.operations.request import Asker, OperationRefused
from broker.operations.table import OPERATIONS


class Node:
    """Stands in for the node: the others are b, which lives, and c, which is dead."""

    def facts(self) -> Mapping[str, Any]:
        """Return this node and the others."""
        return {"node": "a", "nodes": [{"node": "a"}, {"node": "b"}, {"node": "c"}]}

    async def count_out_now(self, name: str) -> bool:
        """Count out c."""
        return name == "c"


def parts(node: Node) -> OperatedBroker:
    """Return a broker that is this node."""
    return cast("OperatedBroker", SimpleNamespace(cluster=node))


async def test_a_dead_node_is_counted_out() -> None:
    """The node of the request is counted out, and its name is the answer."""
    assert await cluster_leave(parts(Node()), LeaveCluster(node="c"), Asker()) == {"node": "c"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a", "'a' is this node"), ("b", "node 'b' is alive"), ("d", "no node 'd'")],
)
async def test_no_other_node_is_counted_out(name: str, reason: str) -> None:
    """A node that lives, this node and an unknown one are refused, each with its reason."""
    with pytest.raises(OperationRefused, match=reason):
        await cluster_leave(parts(Node()), LeaveCluster(node=name), Asker())


def test_facts_are_the_answer() -> None:
    """`cluster` answers what the node knows."""
    assert cluster(parts(Node()), Nothing(), Asker()) == Node().facts()


def test_what_waits_for_the_database_is_refused_while_it_is_away() -> None:
    """The reason is told at once; afterwards the operation is carried out as ever."""
    facts: dict[str, Any] = {"database_ms": None, "reason": "Connection refused"}
    broker = cast("OperatedBroker", SimpleNamespace(cluster=SimpleNamespace(facts=lambda: facts)))
    purge = Operation(lambda *_: "done", Nothing, asks_database=True)
    with pytest.raises(OperationRefused, match="database of the cluster cannot be reached: Connection refused"):
        carry_out(broker, purge, Nothing(), Asker())
    facts["database_ms"] = 0.5
    assert carry_out(broker, purge, Nothing(), Asker()) == "done"


def test_a_node_takes_no_backup() -> None:
    """A node says where the messages are, and which operations ask the database."""
    node = parts(Node())
    with pytest.raises(OperationRefused, match="use slotmq cluster backup"):
        carry_out(node, OPERATIONS["backup"], None, Asker())
    asking = {name for name, operation in OPERATIONS.items() if operation.asks_database}
    assert asking == {
        *("declare_queue", "declare_exchange", "bind", "unbind", "purge_queue", "delete_queue", "delete_exchange"),
        *("publish", "get", "peek", "move", "requeue_dead_letters"),
    }
