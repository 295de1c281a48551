"""The AMQP and MQTT ports, bound first: a second broker with these ports ends before it opens its data folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from broker.event_log import get_logger
from broker.net.address import Bound
from broker.net.tls import TlsContext
from broker.parts.part import Part, Shared
from broker.settings import Settings
from broker.tasks import Tasks

_log = get_logger()

Renew = Callable[[], Awaitable[None]]


class CertificateWatch:
    """Reload changed certificates, so that listeners accept new connections with them."""

    def __init__(self, tls: TlsContext | None, listeners: Sequence[Renew]) -> None:
        """`tls` is None without TLS; `listeners` are the functions that renew the context of each listener."""
        self._tls = tls
        self._tasks = Tasks.logged("tls.not_reloaded")
        self._listeners = listeners

    def reload_if_changed(self) -> None:
        """Reload the files if they have changed since the last check. Cost: one stat per file."""
        if self._tls is not None and self._tls.changed() and self._tls.reload():
            self._tasks.start(self.renew())

    async def renew(self) -> None:
        """Make every listener use the current certificate."""
        for renew in self._listeners:
            await renew()


class Ports(Part):
    """The certificate, and the bound sockets, on which later parts listen."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.tls: TlsContext | None = None
        self.bound: Bound

    async def open(self) -> None:
        """Read the certificate and bind. Raises: TlsUnusable; AddressTaken; CannotListen."""
        settings = self._shared.settings
        self.tls = TlsContext(settings.tls) if settings.tls.is_on else None
        self.bound = Bound(settings)

    async def close(self) -> None:
        self.bound.close()

    async def apply_settings(self, settings: Settings) -> None:
        """Read the certificate of the changed settings. Raises: TlsUnusable, having changed nothing."""
        if self.tls is not None:
            self.tls.load(settings.tls)
