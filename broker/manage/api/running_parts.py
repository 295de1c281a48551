"""The parts that only some brokers have, the cluster, the overlay and ØMQ, and what this broker's forms take.

So the page offers nothing that is refused.
"""

from __future__ import annotations

from typing import Final

from broker.core.policy.policy import APPLY_TO
from broker.core.policy.policy_definition import keys_in_effect
from broker.core.queue.queue_arguments import SUPPORTED_TYPES
from broker.manage.answers import Response, json_answer
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import not_found
from broker.operations.operated_broker import OverlayView
from broker.operations.process import NO_BRIDGE, NO_OVERLAY, NOT_A_NODE
from broker.routing.exchange_types import EXCHANGE_TYPES

CHOICES: Final = {
    "exchange_types": EXCHANGE_TYPES,
    "queue_types": SUPPORTED_TYPES,
    "policy_keys": keys_in_effect(operator=False),
    "operator_policy_keys": keys_in_effect(operator=True),
    "policies_apply_to": [name for name, kinds in APPLY_TO.items() if kinds],
}


async def running_parts(call: Call) -> Response:
    """Answer with a flag for each part that only some brokers have, and with what this one supports."""
    broker = call.broker
    parts = {
        "cluster": broker.cluster is not None,
        "overlay": broker.overlay.is_on,
        "zmq": bool(broker.zmq()),
        "mqtt": broker.settings().mqtt.enabled,
    }
    return json_answer({**parts, "choices": CHOICES})


async def cluster(call: Call) -> Response:
    """Answer with what this node knows: itself, its database, and a row for each member."""
    if call.broker.cluster is None:
        raise not_found(NOT_A_NODE)
    return json_answer(call.broker.cluster.facts())


async def count_out(call: Call) -> None:
    """Declare a node dead, so that the others take over its messages at once."""
    if call.broker.cluster is None:
        raise not_found(NOT_A_NODE)
    await call.operate("cluster_leave", node=call.words["node"])


def _view(call: Call) -> OverlayView:
    view = call.broker.overlay
    if not view.is_on:
        raise not_found(NO_OVERLAY)
    return view


async def overlay(call: Call) -> Response:
    """Answer with a row for each broker."""
    return json_answer(_view(call).facts())


async def explain(call: Call) -> Response:
    """Answer where a message with a routing key would go from each broker, and why."""
    view, query = _view(call), call.query
    return json_answer(view.explain(query.get("vhost", "/"), query.get("exchange"), query.get("key", "")))


async def forget(call: Call) -> None:
    """Stop keeping messages for a leaf that will not return."""
    _view(call)
    await call.operate("overlay_forget", leaf=call.words["leaf"])


async def zmq(call: Call) -> Response:
    """List the ØMQ bridges."""
    rows = call.broker.zmq()
    if not rows:
        raise not_found(NO_BRIDGE)
    return json_answer(rows)


ROUTES: Final = (
    ApiRoute("GET", "/api/slotmq", Needs.MANAGEMENT, running_parts, ()),
    ApiRoute("GET", "/api/slotmq/cluster", Needs.MONITORING, cluster, ()),
    ApiRoute("DELETE", "/api/slotmq/cluster/nodes/{node}", Needs.ADMINISTRATOR, count_out, ()),
    ApiRoute("GET", "/api/slotmq/overlay", Needs.MONITORING, overlay, ()),
    ApiRoute("GET", "/api/slotmq/overlay/explain", Needs.MONITORING, explain, ("vhost", "exchange", "key")),
    ApiRoute("DELETE", "/api/slotmq/overlay/leaves/{leaf}", Needs.ADMINISTRATOR, forget, ()),
    ApiRoute("GET", "/api/slotmq/zmq", Needs.MONITORING, zmq, ()),
)
