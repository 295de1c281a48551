"""What RabbitMQ's tools ask for and a broker without leaders and separate statistics has nothing to do for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.answers import no_content
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["no_op_routes"]


def no_op_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("POST", "/api/rebalance/queues", Needs.ADMINISTRATOR, accept),
        ApiRoute("DELETE", "/api/reset", Needs.ADMINISTRATOR, accept),
        ApiRoute("DELETE", "/api/reset/{node}", Needs.ADMINISTRATOR, accept),
        ApiRoute("PUT", "/api/feature-flags/{flag}/enable", Needs.ADMINISTRATOR, accept),
    ]


async def accept(_call: Call) -> Response:
    """Answer that it is done."""
    return no_content()
