"""The definitions of a broker: vhosts, users, rights and policies, restored at its start and changed while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.administration.administration import Administration
from broker.administration.definitions_store import local_definitions
from broker.administration.opening import open_all
from broker.administration.rehearsal import Rehearsal
from broker.core.auth.first_user import warn_of_guest
from broker.net.cluster_clients import ClusterClients
from broker.parts.part import Part, Shared
from broker.random_name import generate_name

if TYPE_CHECKING:
    from broker.parts.clients import Clients
    from broker.parts.data import Data
    from broker.settings import Settings

__all__ = ["Definitions"]


class Definitions(Part):
    """The administration of the broker, and the rehearsal of changes that may be refused."""

    def __init__(self, shared: Shared, data: Data, clients: Clients) -> None:
        self._shared = shared
        self._data = data
        self._clients = clients
        self.administration: Administration
        self.rehearsal: Rehearsal

    async def open(self) -> None:
        """Join the cluster, if this is one; then recover all vhosts. Raises: as `open_all`."""
        shared, data, clients = self._shared, self._data, self._clients
        settings, node = shared.settings, data.node
        definitions = node.definitions if node is not None else local_definitions(shared.files, shared.path)
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
        await open_all(self.administration, self.rehearsal, data.folder, definitions, settings, shared.recovery)
        if node is not None:
            node.follow(self.administration)
        warn_of_guest(clients.users, clients.logins.loopback_only)

    async def stop(self, timeout_s: float) -> None:
        """Finish changes that have begun."""
        await self.administration.close()

    async def take_settings(self, settings: Settings) -> None:
        """Apply changed settings."""
        self.rehearsal.take_settings(settings)
        self.administration.take_settings(settings)
