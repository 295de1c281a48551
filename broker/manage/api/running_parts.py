"""Which parts of SlotMQ run in this process and what its forms take, so that a page offers nothing that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.policy.policy import APPLY_TO
from broker.core.policy.policy_definition import keys_in_effect
from broker.core.queue.queue_arguments import SUPPORTED_TYPES
from broker.manage.answers import json_answer
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.routing.exchange_types import EXCHANGE_TYPES

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["running_parts_routes"]

CHOICES: Final = {
    "exchange_types": EXCHANGE_TYPES,
    "queue_types": SUPPORTED_TYPES,
    "policy_keys": keys_in_effect(operator=False),
    "operator_policy_keys": keys_in_effect(operator=True),
    "policies_apply_to": [name for name, (exchanges, types) in APPLY_TO.items() if exchanges or types],
}


def running_parts_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [ApiRoute("GET", "/api/slotmq", Needs.MANAGEMENT, running_parts, ())]


async def running_parts(call: Call) -> Response:
    """Answer with a flag for each part that only some brokers have, and with what this one supports."""
    broker = call.broker
    parts = {"cluster": broker.cluster is not None, "overlay": broker.overlay.is_on, "zmq": bool(broker.zmq())}
    return json_answer({**parts, "choices": CHOICES})
