"""The optional parts of the broker (cluster, overlay, ØMQ, MQTT), and the values that forms of the page offer."""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.core.policy.policy import APPLY_TO
from broker.core.policy.policy_definition import keys_in_effect
from broker.core.queue.queue_arguments import SUPPORTED_TYPES
from broker.manage.answers import Response, json_answer
from broker.manage.call import ApiRoute, Call, Needs
from broker.routing.exchange_types import EXCHANGE_TYPES

CHOICES: Final = {
    "exchange_types": EXCHANGE_TYPES,
    "queue_types": SUPPORTED_TYPES,
    "policy_keys": keys_in_effect(operator=False),
    "operator_policy_keys": keys_in_effect(operator=True),
    "policies_apply_to": [name for name, kinds in APPLY_TO.items() if kinds],
}


async def running_parts(call: Call) -> Response:
    """Answer with a flag for each optional part, and the values that forms of the page offer."""
    broker = call.broker
    parts = {
        "cluster": broker.cluster is not None,
        "overlay": broker.overlay.is_on,
        "zmq": bool(broker.zmq()),
        "mqtt": broker.settings().mqtt.enabled,
    }
    return json_answer({**parts, "choices": CHOICES})


async def show(call: Call, *, operation: str, **defaults: str) -> Response:
    """Answer with the result of an operation on a part. Raises: PartMissing (404)."""
    return json_answer(await call.operate(operation, **{**defaults, **call.query}))


async def change(call: Call, *, operation: str) -> None:
    """Remove a dead node, or stop keeping messages for a leaf that will not return. Raises: PartMissing (404)."""
    await call.operate(operation, **call.words)


ROUTES: Final = (
    ApiRoute("GET", "/api/slotmq", Needs.MANAGEMENT, running_parts, ()),
    *(
        ApiRoute("GET", f"/api/slotmq/{part}", Needs.MONITORING, partial(show, operation=part), ())
        for part in ("cluster", "overlay", "zmq")
    ),
    ApiRoute(
        "GET", "/api/slotmq/overlay/explain", Needs.MONITORING, partial(show, operation="overlay_explain", key=""),
        ("vhost", "exchange", "key"),
    ),
    *(
        ApiRoute("DELETE", f"/api/slotmq/{path}", Needs.ADMINISTRATOR, partial(change, operation=operation), ())
        for path, operation in (("cluster/nodes/{node}", "cluster_leave"), ("overlay/leaves/{leaf}", "overlay_forget"))
    ),
)  # fmt: skip
