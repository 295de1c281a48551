"""The parts of a running broker that operations read and change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.administration.administration import Administration
from broker.administration.backups import Backups
from broker.administration.rehearsal import Rehearsal
from broker.core.auth.permissions import Permissions
from broker.core.queue.queue import Queue
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost
from broker.delivery.engine import Engine
from broker.operations.queue_readings import HeadTimes, QueueRates
from broker.operations.request import OperationRefused
from broker.taps.taps import Taps


class ClusterMembership(Protocol):
    """This broker as a node of a cluster. See `cluster.node.ClusterNode`."""

    def facts(self) -> Mapping[str, Any]: ...
    async def count_out_now(self, name: str) -> bool: ...


class OverlayView(Protocol):
    """The brokers of an overlay in this process, if any. See `parts.overlay.Overlay`."""

    @property
    def is_on(self) -> bool: ...
    def facts(self) -> list[dict[str, Any]]: ...
    def flows(self) -> list[dict[str, Any]]: ...
    def explain(self, vhost: str, exchange: str | None, key: str) -> list[dict[str, Any]]: ...
    def forget(self, leaf: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OperatedBroker:
    """The parts of a broker, and functions of the server.

    Shapes: `sessions` returns the connections of this node, `blocked_sessions` those that an alarm blocks. `facts`
        returns the fields of `slotmq status` that describe the process. `cluster` and `ask_nodes` are None for a
        standalone broker; `ask_nodes` requests unacked messages from the other nodes. `zmq` returns a row for each ØMQ
        bridge. `shown_settings` leaves out secrets. `ask_to_stop` begins to stop the broker, and then calls its
        argument with the progress.
    """

    administration: Administration
    rehearsal: Rehearsal
    permissions: Permissions
    taps: Taps
    backups: Backups
    sessions: Callable[[], Collection[SessionOfConnection]]
    blocked_sessions: Callable[[], Collection[SessionOfConnection]]
    facts: Callable[[], Mapping[str, Any]]
    cluster: ClusterMembership | None
    ask_nodes: Callable[[Mapping[str, Any]], Awaitable[list[Any]]] | None
    overlay: OverlayView
    zmq: Callable[[], list[dict[str, Any]]]
    reload: Callable[[], Awaitable[Mapping[str, Any]]]
    shown_settings: Callable[[], Mapping[str, Any]]
    ask_to_stop: Callable[[Callable[[Mapping[str, Any]], None]], None]
    listed_rates: QueueRates = field(default_factory=QueueRates)
    top_rates: QueueRates = field(default_factory=QueueRates)
    heads: HeadTimes = field(default_factory=HeadTimes)
    traces: set[object] = field(default_factory=set)

    def vhost(self, name: str) -> Vhost:
        """Return a vhost. Raises: OperationRefused."""
        vhosts = self.administration.vhosts
        if vhosts.is_down(name):
            raise OperationRefused(f"vhost '{name}' is down: {vhosts.offline[name]}")
        found = vhosts.get(name)
        if found is None:
            raise OperationRefused(f"no vhost '{name}'")
        return found

    def vhosts(self, name: str | None) -> Sequence[Vhost]:
        """Return the named vhost, or all vhosts sorted by name if `name` is None. Raises: OperationRefused."""
        if name is not None:
            return [self.vhost(name)]
        return [self.administration.vhosts[name] for name in sorted(self.administration.vhosts)]

    def queue(self, vhost: str, name: str) -> tuple[Vhost, Queue]:
        """Return a vhost and one of its queues, with the newest policies applied. Raises: OperationRefused."""
        found = self.vhost(vhost)
        queue = found.queues.get(name)
        if queue is None:
            raise OperationRefused(f"no queue '{name}' in vhost '{vhost}'")
        found.sweep.update(queue)
        return found, queue

    def engine(self, vhost: Vhost) -> Engine:
        return self.administration.vhosts.engines[vhost.name]

    @property
    def alarms(self) -> list[str]:
        """The kinds of the active alarms."""
        return [alarm["kind"] for alarm in self.facts()["alarms"]]
