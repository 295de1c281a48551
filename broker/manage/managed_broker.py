"""The parts of a running broker that the HTTP API reads and changes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.core.auth.logins import Logins
from broker.manage.file_reads import FileReads
from broker.manage.samples import Samples
from broker.net.listener import Listener
from broker.operations.operated_broker import OperatedBroker
from broker.operations.request import Verb
from broker.settings import Settings
from broker.store.files import Files
from broker.vhosts.broker_statistics import BrokerStatistics

if TYPE_CHECKING:
    from broker.manage.client import ApiClient


@dataclass(frozen=True, kw_only=True)
class ManagedBroker(OperatedBroker):
    """The parts of a broker, including those that only HTTP needs.

    Shapes: `settings` are those in force now; `verbs` are the verbs of the control socket, by name; `unready` gives the
        reasons why the broker takes no work now, `down` names vhosts that are down while the others work; `ports` has
        the numbers of the ports of HTTP, such as http_port, None for one that is not open; `reads` are those of files
        for clients. `streams` has the user of each open stream of /api/live, `conversations` user and client of each
        command over HTTP, both the oldest first. Invariant: there are at most http.streams_max streams; for a new one,
        the user with most streams loses one.
    """

    settings: Callable[[], Settings]
    listener: Listener
    logins: Logins
    verbs: Mapping[str, Verb]
    unready: Callable[[], Sequence[str]]
    down: Callable[[], Sequence[str]]
    ports: Callable[[], Mapping[str, int | None]]
    incarnation: str
    files: Files
    statistics: BrokerStatistics
    samples: Samples
    reads: FileReads
    streams: dict[ApiClient, str] = field(default_factory=dict)
    conversations: dict[Any, tuple[str, ApiClient]] = field(default_factory=dict)

    @property
    def node_name(self) -> str:
        """The node's name in its cluster; for a standalone broker, a name and a host as RabbitMQ has them."""
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
