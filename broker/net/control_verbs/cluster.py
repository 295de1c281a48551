"""`cluster`: what this node knows of the cluster. `cluster_leave`: counts out a dead node before its lease ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from broker.net.control_request import ControlRefused, Request, Verb

__all__ = ["ClusterMembership", "cluster_verbs"]

NOT_A_NODE = "this broker is by itself, and no node of a cluster: it runs without --cluster"


class ClusterMembership(Protocol):
    """The node that the broker is."""

    def facts(self) -> Mapping[str, Any]:
        """Return what the node knows, as JSON; `nodes` has a row for each member."""

    async def count_out_now(self, name: str) -> bool:
        """Count out a dead node, and return False if it lives. Raises: OSError, ValueError."""


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
