"""`cluster`: what this node knows of the cluster. `cluster_leave`: counts out a dead node before its lease ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from broker.net.control_request import ControlRefused, Request, Verb

__all__ = ["ClusterMembership", "cluster_verbs", "refused_in_cluster", "refused_while_away"]

NOT_A_NODE = "this broker is by itself, and no node of a cluster: it runs without --cluster"
NOT_IN_CLUSTER = {  # verbs that work on the messages of one broker's own log
    "backup": "the messages and the topology of a cluster are in PostgreSQL: use slotmq cluster backup",
}
ASKS_DATABASE = (
    "declare_queue", "declare_exchange", "bind", "unbind", "purge_queue", "delete_queue", "delete_exchange", "publish",
    "get", "peek", "move", "requeue_dead_letters",
)  # fmt: skip


class ClusterMembership(Protocol):
    """The node that the broker is."""

    def facts(self) -> Mapping[str, Any]:
        """Return what the node knows, as JSON; `nodes` has a row for each member."""

    async def count_out_now(self, name: str) -> bool:
        """Count out a dead node, and return False if it lives. Raises: BrokerError."""


def refused_in_cluster() -> dict[str, Verb]:
    """Return the verbs that a node refuses, each with its reason."""

    def refusal(reason: str) -> Verb:
        def refuse(_request: Request) -> None:
            raise ControlRefused(reason)

        return refuse

    return {name: refusal(reason) for name, reason in NOT_IN_CLUSTER.items()}


def refused_while_away(membership: ClusterMembership, verbs: Mapping[str, Verb]) -> dict[str, Verb]:
    """Return the verbs that would wait for the database, which a node refuses while it does not reach it.

    An operator who was told that a command failed does not expect it to take effect later.
    """

    def guarded(verb: Verb) -> Verb:
        def answer(request: Request) -> Any:
            facts = membership.facts()
            if facts["database_ms"] is None:
                raise ControlRefused(f"the database of the cluster cannot be reached: {facts['reason']}")
            return verb(request)

        return answer

    return {name: guarded(verbs[name]) for name in ASKS_DATABASE}


def cluster_verbs(membership: ClusterMembership | None) -> dict[str, Verb]:
    """Return the verbs, which a broker by itself refuses."""

    def node() -> ClusterMembership:
        if membership is None:
            raise ControlRefused(NOT_A_NODE)
        return membership

    def cluster(_request: Request) -> Mapping[str, Any]:
        return node().facts()

    async def leave(request: Request) -> dict[str, Any]:
        name = request.text("node")
        facts = node().facts()
        if name == facts["node"]:
            raise ControlRefused(f"'{name}' is this node: stop it, then it leaves")
        if name not in (row["node"] for row in facts["nodes"]):
            raise ControlRefused(f"no node '{name}' in the cluster")
        if not await node().count_out_now(name):
            raise ControlRefused(f"node '{name}' lives: stop its broker, then it leaves")
        return {"node": name}

    return {"cluster": cluster, "cluster_leave": leave}
