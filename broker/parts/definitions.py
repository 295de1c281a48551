"""The definitions of a broker: vhosts, users, rights and policies, restored at its start and changed while it runs."""

from __future__ import annotations

import asyncio

from broker.administration.administration import Administration
from broker.administration.definitions import LocalDefinitions
from broker.administration.opening import open_all
from broker.administration.rehearsal import Rehearsal
from broker.amqp.errors import NotNow
from broker.core.alarms import DATABASE, Alarms
from broker.core.auth.first_user import warn_of_guest
from broker.core.definitions.reading import NotStored
from broker.event_log import get_logger
from broker.net.listener import Listener
from broker.net.publisher_throttle import PublisherThrottle, ThrottledConnection
from broker.parts.clients import Clients
from broker.parts.data import Data, generate_name
from broker.parts.part import Part, Shared
from broker.settings import Settings

_log = get_logger()


class ClusterClients:
    """Count, block and drop the clients of this node, for the cluster."""

    def __init__(self, listener: Listener, alarms: Alarms[ThrottledConnection], throttle: PublisherThrottle) -> None:
        self._listener = listener
        self._alarms = alarms
        self._throttle = throttle

    @property
    def count(self) -> int:
        return len(self._listener.transports)

    def block(self, reason: str) -> None:
        """Block the publishers, and send them the reason."""
        _log.warning("alarm.raised", **self._alarms.raise_outage(reason).fields())
        self._throttle.alarms_changed()

    def unblock(self) -> None:
        self._alarms.clear_outage()
        _log.info("alarm.cleared", kind=DATABASE)
        self._throttle.alarms_changed()

    def drop(self, reason: str) -> None:
        """Close all connections with code 320. Discard unwritten output, because other nodes may have its messages."""
        for transport in list(self._listener.transports):
            transport.drop(reason)


class Definitions(Part):
    """The administration of the broker, and the rehearsal, which tries changes in memory before they are applied."""

    def __init__(self, shared: Shared, data: Data, clients: Clients) -> None:
        self._shared = shared
        self._data = data
        self._clients = clients
        self.administration: Administration
        self.rehearsal: Rehearsal

    async def open(self) -> None:
        """Join the cluster, if any; then recover all vhosts. Raises: what `open_all` raises; BrokerError; NotNow."""
        shared, data, clients = self._shared, self._data, self._clients
        settings, node = shared.settings, data.node
        definitions = node.definitions if node is not None else LocalDefinitions(shared.files, shared.path)
        self.administration = Administration(
            definitions,
            data.vhosts,
            clients.users,
            clients.permissions,
            vhosts_max=settings.limits.vhosts_max,
            close_connections=clients.listener.force_close,
            fail=shared.fail,
        )
        if node is not None:
            await node.start(ClusterClients(clients.listener, clients.alarms, clients.throttle))
        self.rehearsal = Rehearsal(data.vhosts, settings, shared.turn, generate_name)
        try:
            await open_all(self.administration, self.rehearsal, data.folder, definitions, settings, shared.recovery)
        except NotStored as error:
            raise NotNow(f"cannot start: {error}") from error
        if node is not None:
            node.follow(self.administration)
        warn_of_guest(clients.users, clients.logins.loopback_only)

    async def stop(self, timeout_s: float) -> None:
        """Finish changes that have begun. In a cluster they may wait for other nodes, so they are cancelled after the
        timeout: PostgreSQL applies a change completely or not at all, and the next start finishes an import.
        """
        try:
            async with asyncio.timeout(None if self._data.node is None else timeout_s):
                await self.administration.close()
        except TimeoutError:
            _log.warning("definitions.change_cancelled", waited_s=timeout_s)

    async def apply_settings(self, settings: Settings) -> None:
        self.rehearsal.apply_settings(settings)
        self.administration.apply_settings(settings)
