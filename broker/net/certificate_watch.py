"""Certificates that change while the broker runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from broker.event_log import get_logger
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.net.tls import TlsContext

__all__ = ["CertificateWatch"]

_log = get_logger()

Renew = Callable[[], Awaitable[None]]


class CertificateWatch:
    """Reloads changed certificates, so that listeners accept new connections with them."""

    def __init__(self, tls: TlsContext | None, listeners: Sequence[Renew]) -> None:
        """Take the TLS context, None without TLS, and the function that renews each listener."""
        self._tls = tls
        self._tasks = Tasks.logged("tls.not_reloaded")
        self._listeners = listeners

    def look(self) -> None:
        """Reload the files if they have changed since the last look. Cost: one stat per file."""
        if self._tls is not None and self._tls.changed() and self._tls.reload():
            self._tasks.start(self.renew())

    async def renew(self) -> None:
        """Return when every listener accepts with the current context."""
        for renew in self._listeners:
            await renew()
