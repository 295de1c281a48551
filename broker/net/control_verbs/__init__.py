"""The verbs of the control socket, by noun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.net.control_verbs.backup import backup_verbs
from broker.net.control_verbs.cluster import ClusterMembership, cluster_verbs, refused_in_cluster, refused_while_away
from broker.net.control_verbs.definitions import definitions_verbs
from broker.net.control_verbs.lifecycle import lifecycle_verbs
from broker.net.control_verbs.listing import listing_verbs
from broker.net.control_verbs.messages import message_verbs
from broker.net.control_verbs.moving import moving_verbs
from broker.net.control_verbs.overlay import OverlayView, overlay_verbs
from broker.net.control_verbs.pausing import pausing_verbs
from broker.net.control_verbs.purging import purging_verbs
from broker.net.control_verbs.refusing import refusing
from broker.net.control_verbs.resources import resource_verbs
from broker.net.control_verbs.slots import slot_verbs
from broker.net.control_verbs.taps import tap_verbs
from broker.net.control_verbs.top import top_verbs
from broker.net.control_verbs.topology import topology_verbs
from broker.net.control_verbs.trace import trace_verbs
from broker.net.control_verbs.unacked import AskNodes, unacked_verbs
from broker.net.control_verbs.users import user_verbs
from broker.net.control_verbs.vhosts import vhost_verbs
from broker.net.control_verbs.zmq import zmq_verbs

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.backups import Backups
    from broker.administration.rehearsal import Rehearsal
    from broker.net.control_request import Verb
    from broker.net.listener import Listener
    from broker.taps.taps import Taps

__all__ = ["control_verbs"]


def control_verbs(
    administration: Administration,
    rehearsal: Rehearsal,
    listener: Listener,
    taps: Taps,
    backups: Backups,
    facts: Callable[[], Mapping[str, Any]],
    *,
    cluster: ClusterMembership | None = None,
    ask_nodes: AskNodes | None = None,
    overlay: OverlayView,
    zmq: Callable[[], list[dict[str, Any]]],
    reload: Callable[[], Awaitable[Mapping[str, Any]]],
    settings: Callable[[], Mapping[str, Any]],
    stop: Callable[[Callable[[Mapping[str, Any]], None]], None],
) -> dict[str, Verb]:
    """Return the verbs. `facts` returns what only the server knows: version, address, connections, alarms.
    `cluster` is the node that the broker is, None for a broker by itself; `ask_nodes` asks the other nodes; `overlay`
    is its part in an overlay, `zmq` returns a row for each of its ØMQ bridges.

    `reload` reads the settings again, `settings` returns those in force, `stop` begins to stop and reports what it
    waits for.
    """

    def status_facts() -> Mapping[str, Any]:
        return facts() if cluster is None else {**facts(), "cluster": cluster.facts()}

    verbs = {
        **slot_verbs(administration, taps, status_facts),
        **listing_verbs(administration, listener),
        **top_verbs(administration, facts),
        **resource_verbs(administration, listener),
        **pausing_verbs(administration),
        **message_verbs(administration, facts),
        **unacked_verbs(administration, listener, ask_nodes),
        **moving_verbs(administration, facts),
        **purging_verbs(administration),
        **topology_verbs(administration),
        **user_verbs(administration),
        **vhost_verbs(administration),
        **tap_verbs(taps),
        **trace_verbs(administration),
        **backup_verbs(backups),
        **definitions_verbs(administration, rehearsal),
        **cluster_verbs(cluster),
        **overlay_verbs(overlay),
        **zmq_verbs(zmq),
        **lifecycle_verbs(reload, settings, stop),
    }
    if cluster is not None:
        verbs |= refused_in_cluster()
        verbs |= refused_while_away(cluster, verbs)
    return {name: refusing(verb) for name, verb in verbs.items()}
