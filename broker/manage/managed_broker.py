"""What the HTTP API reads and changes: the parts of a running broker."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.rehearsal import Rehearsal
    from broker.core.auth.logins import Logins
    from broker.core.auth.permissions import Permissions
    from broker.manage.samples import Samples
    from broker.net.control_request import Verb
    from broker.net.control_verbs.cluster import ClusterMembership
    from broker.net.control_verbs.overlay import OverlayView
    from broker.net.listener import Listener
    from broker.settings import Settings
    from broker.store.files import Files
    from broker.taps.taps import Taps
    from broker.vhosts.broker_statistics import BrokerStatistics

__all__ = ["ManagedBroker"]


@dataclass(frozen=True, slots=True)
class ManagedBroker:
    """The parts of a broker.

    Shapes: `settings` are those in force now; `verbs` are the verbs of the control socket, by name; `facts` is what
    `slotmq status` shows; `unready` gives the reasons why the broker takes no work now, `down` names vhosts that are
    down while the others work; `ports` has the numbers of the ports of HTTP, such as http_port, None for one that is
    not open; `zmq` returns a row for each ØMQ bridge.
    """

    settings: Callable[[], Settings]
    administration: Administration
    rehearsal: Rehearsal
    listener: Listener
    taps: Taps
    logins: Logins
    permissions: Permissions
    verbs: Mapping[str, Verb]
    facts: Callable[[], Mapping[str, Any]]
    unready: Callable[[], Sequence[str]]
    down: Callable[[], Sequence[str]]
    ports: Callable[[], Mapping[str, int | None]]
    incarnation: str
    files: Files
    cluster: ClusterMembership | None
    overlay: OverlayView
    zmq: Callable[[], list[dict[str, Any]]]
    statistics: BrokerStatistics
    samples: Samples

    @property
    def node_name(self) -> str:
        """The node's name in its cluster; for a broker that stands alone, a name and a host as RabbitMQ has them."""
        return self.settings().cluster.node or f"slotmq@{_host()}"

    def is_named(self, name: str) -> bool:
        """Return whether a client means this broker: by its name, or by RabbitMQ's usual one on this machine."""
        if name == self.node_name:
            return True
        node, _, host = name.lower().partition("@")
        return node == "rabbit" and host.partition(".")[0] == _host().lower()


def _host() -> str:
    """Return the name of this machine without its domain."""
    return socket.gethostname().partition(".")[0]
