"""Operations on the whole broker, its connections, and its part of a cluster or an overlay."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final

from broker.event_log import get_logger
from broker.operations.drain import TIMEOUT_MAX_S, TIMEOUT_S, Drain, drain
from broker.operations.operated_broker import ClusterMembership, OperatedBroker, OverlayView
from broker.operations.operation import MONITORING, Operation
from broker.operations.request import Asker, OperationRefused, PartMissing, Range, parameters
from broker.operations.rows import slot_count, user_name
from broker.taps.tap_listing import cursor_rows

LOST_SHOWN: Final = 10  # publishers of each vhost
NOT_A_NODE: Final = "this broker is standalone, not a node of a cluster: it runs without --cluster"
NO_OVERLAY: Final = "this broker takes no part in an overlay: its settings have no [[overlay.node]]"
NO_BRIDGE: Final = "this broker has no ØMQ bridges: its settings have no [[zmq.publish]] or [[zmq.subscribe]]"

_log = get_logger()


@parameters
class Nothing:
    """No parameters."""


@parameters
class Stop:
    """How to stop: with `drain`, clients can settle their messages first."""

    drain: bool = False
    drain_s: Annotated[int, Range(0, TIMEOUT_MAX_S)] = TIMEOUT_S


@parameters
class CloseConnection:
    """A connection to close, and the reason that its client receives."""

    name: str
    reason: str = "Closed via command line"


@parameters
class LeaveCluster:
    """The dead node to remove."""

    node: str


@parameters
class ExplainRoute:
    """A message whose route through the overlay is explained."""

    vhost: str = "/"
    exchange: str | None = None
    key: str


@parameters
class ForgetLeaf:
    """The leaf that will not return."""

    leaf: str


def health(_broker: OperatedBroker, _asked: Nothing, _asker: Asker) -> None:
    """Return nothing: the answer alone shows that the loop runs."""


def status(broker: OperatedBroker, _asked: Nothing, _asker: Asker) -> dict[str, Any]:
    """Return the broker's status, and the totals of its queues."""
    vhosts, cluster = broker.administration.vhosts, broker.cluster
    queues = [queue for vhost in vhosts.values() for queue in vhost.queues.values()]
    return {
        **broker.facts(),
        **({} if cluster is None else {"cluster": cluster.facts()}),
        "vhosts": len(vhosts),
        "vhosts_down": [{"vhost": name, "reason": reason} for name, reason in sorted(vhosts.offline.items())],
        "queues_recovered": [
            {"vhost": name, "queue": queue.name, "messages": queue.waiting + queue.unacked}
            for name, vhost in vhosts.items()
            for queue in vhost.queues.values()
            if queue.recovered
        ],
        "publishers_lost": [
            {"vhost": name, **row} for name, vhost in vhosts.items() for row in vhost.tally.lost.rows()[:LOST_SHOWN]
        ],
        "queues": len(queues),
        "ready": sum(queue.ready for queue in queues),
        "unacked": sum(queue.unacked for queue in queues),
        "slots": sum(map(slot_count, queues)),
        "cursors": cursor_rows(broker.taps.listing()),
    }


async def reload(broker: OperatedBroker, _asked: Nothing, _asker: Asker) -> Mapping[str, Any]:
    """Read the settings again."""
    return await broker.reload()


def settings(broker: OperatedBroker, _asked: Nothing, _asker: Asker) -> Mapping[str, Any]:
    """Return the settings in force, without secrets."""
    return broker.shown_settings()


async def stop(broker: OperatedBroker, asked: Stop, asker: Asker) -> None:
    """Stop the broker, after a drain if requested. Only progress is sent; there is no answer to a successful stop."""
    asker.write_progress({"pid": os.getpid()})
    if asked.drain:
        await drain(broker, Drain(timeout_s=asked.drain_s, reason="the broker is about to stop"), asker)
    broker.ask_to_stop(asker.write_progress)
    await asyncio.Event().wait()


def close_connection(broker: OperatedBroker, asked: CloseConnection, _asker: Asker) -> None:
    """Close the connections with the given name."""
    found = [session for session in broker.sessions() if session.name == asked.name]
    if not found:
        raise OperationRefused(f"no connection '{asked.name}'")
    for session in found:
        session.force_close(asked.reason)
        user = user_name(session) or None
        _log.info("connection.force_closed", conn=session.name, user=user, reason=asked.reason)


def _node(broker: OperatedBroker) -> ClusterMembership:
    if broker.cluster is None:
        raise PartMissing(NOT_A_NODE)
    return broker.cluster


def cluster(broker: OperatedBroker, _asked: Nothing, _asker: Asker) -> Mapping[str, Any]:
    """Return this node's facts about its cluster."""
    return _node(broker).facts()


async def cluster_leave(broker: OperatedBroker, asked: LeaveCluster, _asker: Asker) -> dict[str, Any]:
    """Remove a dead node from the cluster before its lease ends."""
    name, facts = asked.node, _node(broker).facts()
    if name == facts["node"]:
        raise OperationRefused(f"'{name}' is this node: stop it, then it leaves")
    if name not in (row["node"] for row in facts["nodes"]):
        raise OperationRefused(f"no node '{name}' in the cluster")
    if not await _node(broker).count_out_now(name):
        raise OperationRefused(f"node '{name}' is alive: stop its broker, then it leaves")
    return {"node": name}


def _view(broker: OperatedBroker) -> OverlayView:
    if not broker.overlay.is_on:
        raise PartMissing(NO_OVERLAY)
    return broker.overlay


def overlay(broker: OperatedBroker, _asked: Nothing, _asker: Asker) -> list[dict[str, Any]]:
    """Return the facts of this process's overlay brokers."""
    return _view(broker).facts()


def overlay_explain(broker: OperatedBroker, asked: ExplainRoute, _asker: Asker) -> list[dict[str, Any]]:
    """Return the route of a message in the overlay, with reasons."""
    return _view(broker).explain(asked.vhost, asked.exchange, asked.key)


def overlay_forget(broker: OperatedBroker, asked: ForgetLeaf, _asker: Asker) -> None:
    """Stop keeping messages for a leaf that will not return."""
    _view(broker).forget(asked.leaf)


def zmq(broker: OperatedBroker, _asked: Nothing, _asker: Asker) -> list[dict[str, Any]]:
    """Return the ØMQ bridges."""
    found = broker.zmq()
    if not found:
        raise PartMissing(NO_BRIDGE)
    return found


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "health": Operation(health, Nothing, tag=MONITORING),
    "status": Operation(status, Nothing, tag=MONITORING),
    "reload": Operation(reload, Nothing),
    "settings": Operation(settings, Nothing),
    "stop": Operation(stop, Stop),
    "close_connection": Operation(close_connection, CloseConnection),
    "cluster": Operation(cluster, Nothing, tag=MONITORING),
    "cluster_leave": Operation(cluster_leave, LeaveCluster),
    "overlay": Operation(overlay, Nothing, tag=MONITORING),
    "overlay_explain": Operation(overlay_explain, ExplainRoute, tag=MONITORING),
    "overlay_forget": Operation(overlay_forget, ForgetLeaf),
    "zmq": Operation(zmq, Nothing, tag=MONITORING),
}
