"""The cluster that the broker is a node of, and a dead node that the others need not wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.answers import json_answer, no_content
from broker.manage.api.carried_out import carried_out
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.refusal import not_found
from broker.net.control_verbs.cluster import NOT_A_NODE

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["cluster_routes"]


def cluster_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/slotmq/cluster", Needs.MONITORING, cluster, ()),
        ApiRoute("DELETE", "/api/slotmq/cluster/nodes/{node}", Needs.ADMINISTRATOR, count_out, ()),
    ]


async def cluster(call: Call) -> Response:
    """Answer with what this node knows: itself, its database, and a row for each member."""
    if call.broker.cluster is None:
        raise not_found(NOT_A_NODE)
    return json_answer(call.broker.cluster.facts())


async def count_out(call: Call) -> Response:
    """Let the others take over at once what a dead node held."""
    if call.broker.cluster is None:
        raise not_found(NOT_A_NODE)
    await carried_out(call, "cluster_leave", node=call.words["node"])
    return no_content()
