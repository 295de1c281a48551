"""The AMQP ports: bound before anything else, so that a second broker ends before it touches the data folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.address import Bound
from broker.net.tls import TlsContext
from broker.parts.part import Part, Shared

if TYPE_CHECKING:
    from broker.settings import Settings

__all__ = ["Ports"]


class Ports(Part):
    """The certificate and the bound sockets, which do not listen yet."""

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
        """Close the sockets."""
        self.bound.close()

    async def take_settings(self, settings: Settings) -> None:
        """Read another certificate. Raises: TlsUnusable, having changed nothing."""
        if self.tls is not None:
            self.tls.take(settings.tls)
