"""The entrance of a broker: it accepts AMQP clients, HTTP clients and commands while the broker runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.administration.backups import Backups
from broker.manage.counts import TOTAL_COUNTERS, TOTAL_NUMBERS, BrokerTotals
from broker.manage.file_reads import FileReads
from broker.manage.managed_broker import ManagedBroker
from broker.manage.samples import Samples
from broker.net.control import ControlSocket
from broker.operations.operated_broker import OperatedBroker
from broker.operations.table import control_verbs
from broker.operations.unacked import answering
from broker.parts.clients import Clients
from broker.parts.data import Data
from broker.parts.definitions import Definitions
from broker.parts.http import Http
from broker.parts.overlay import Overlay
from broker.parts.part import Part, Shared
from broker.parts.ports import Ports
from broker.settings.change import in_force
from broker.vhosts.broker_statistics import BrokerStatistics


@dataclass(eq=False)
class Entrance(Part):
    """Accept clients on the AMQP listener, the HTTP ports and the control socket.

    `facts` returns the fields that `slotmq status` shows, and `unready` the reasons why the broker is not ready.
    """

    shared: Shared
    ports: Ports
    http: Http
    data: Data
    clients: Clients
    definitions: Definitions
    overlay: Overlay
    zmq: Callable[[], list[dict[str, Any]]]
    facts: Callable[[], Mapping[str, Any]]
    unready: Callable[[], Sequence[str]]
    reload: Callable[[], Awaitable[Mapping[str, Any]]]
    ask_to_stop: Callable[[Callable[[Mapping[str, Any]], None]], None]
    statistics: BrokerStatistics = field(init=False)
    control: ControlSocket = field(init=False)
    managed: ManagedBroker = field(init=False)

    async def open(self) -> None:
        """Create the objects that operations and the HTTP API use, and the control socket with its verbs."""
        shared, data, clients = self.shared, self.data, self.clients
        administration, rehearsal = self.definitions.administration, self.definitions.rehearsal
        node, settings = data.node, shared.settings
        operated = OperatedBroker(
            administration=administration,
            rehearsal=rehearsal,
            permissions=clients.permissions,
            taps=data.taps,
            backups=Backups(data.folder, administration, data.taps),
            sessions=clients.listener.sessions,
            blocked_sessions=clients.listener.blocked_sessions,
            facts=self.facts,
            cluster=None if node is None else node.member,
            ask_nodes=None if node is None else node.mailbox.ask,
            overlay=self.overlay,
            zmq=self.zmq,
            reload=self.reload,
            shown_settings=lambda: in_force(shared.settings),
            ask_to_stop=self.ask_to_stop,
        )
        if node is not None:
            node.mailbox.answer_by(answering(operated, settings.cluster.node))
        verbs = control_verbs(operated)
        self.control = ControlSocket(shared.path, verbs)
        self.statistics = BrokerStatistics(data.vhosts, clients.usage)
        totals = BrokerTotals(shared.path, data.vhosts, clients.listener, self.statistics, shared.files)
        self.managed = ManagedBroker(
            **vars(operated),
            settings=lambda: shared.settings,
            listener=clients.listener,
            logins=clients.logins,
            verbs=verbs,
            unready=self.unready,
            down=lambda: sorted(data.vhosts.offline),
            ports=self.http.ports,
            incarnation=data.folder.incarnation,
            files=shared.files,
            statistics=self.statistics,
            samples=Samples(settings.http.sample_interval_ms, TOTAL_NUMBERS, TOTAL_COUNTERS, totals.read),
            reads=FileReads(shared.files),
        )

    async def start(self) -> None:
        """Accept clients and commands."""
        bound = self.ports.bound
        await self.clients.listener.serve("amqp", bound.of("server.port"), bound.of("tls.port"))
        if self.shared.settings.server.control_socket:
            await self.control.start()
        self.http.serve(self.managed)

    async def stop(self, timeout_s: float) -> None:
        """Accept no more clients, and stop reading from connected ones."""
        self.clients.listener.refuse_new()
        self.clients.listener.stop_reading()
        self.http.refuse_new()

    async def close(self) -> None:
        """Close the control socket, which has stayed open to report the progress of the stop."""
        await self.control.close()
