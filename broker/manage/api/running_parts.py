"""Which parts of SlotMQ run in this process, so that a page offers only screens with something to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.answers import json_answer
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["running_parts_routes"]


def running_parts_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [ApiRoute("GET", "/api/slotmq", Needs.MANAGEMENT, running_parts, ())]


async def running_parts(call: Call) -> Response:
    """Answer with a flag for each part that only some brokers have."""
    broker = call.broker
    return json_answer(
        {"cluster": broker.cluster is not None, "overlay": broker.overlay.is_on, "zmq": bool(broker.zmq())}
    )
