"""The parts of a running broker that the HTTP API reads and changes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.core.auth.logins import Logins
from broker.manage.client import LongAnswers
from broker.manage.file_reads import FileReads
from broker.manage.samples import Samples
from broker.net.listener import Listener
from broker.operations.operated_broker import OperatedBroker
from broker.operations.request import Verb
from broker.settings import Settings
from broker.store.files import Files
from broker.vhosts.broker_statistics import BrokerStatistics


@dataclass(frozen=True, kw_only=True)
class ManagedBroker(OperatedBroker):
    """The parts of a broker, including those that only HTTP needs.

    Shapes: `settings` returns the current settings; `verbs` are the verbs of the control socket, by name; `unready`
        returns the reasons why the broker is not ready, and `down` the vhosts that are down; `ports` returns the HTTP
        ports by names such as http_port, each None if it is not open; `reads` reads files for clients. `streams` are
        the answers of /api/live, and `conversations` the commands that run over HTTP.
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
    streams: LongAnswers = field(default_factory=LongAnswers)
    conversations: LongAnswers = field(default_factory=LongAnswers)

    @property
    def node_name(self) -> str:
        """The name of the node in its cluster; for a standalone broker, a name with a host as in RabbitMQ."""
        return self.settings().cluster.node or f"slotmq@{_host()}"

    def is_named(self, name: str) -> bool:
        """Return whether a name is that of this broker, or RabbitMQ's default name on this machine."""
        if name == self.node_name:
            return True
        node, _, host = name.lower().partition("@")
        return node == "rabbit" and host.partition(".")[0] == _host().lower()


def _host() -> str:
    """Return the name of this machine without its domain."""
    return socket.gethostname().partition(".")[0]
