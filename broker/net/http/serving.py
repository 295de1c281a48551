"""Puts the HTTP server together: the table of all that it answers, and who may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.net.http.file_reads import FileReads
from broker.net.http.login import BasicLogin
from broker.net.http.probe_routes import probe_routes
from broker.net.http.responder import Respond
from broker.net.http.rights import HttpRights
from broker.net.http.routes import RouteTable
from broker.net.http.server import HttpServer
from broker.net.http.slot_routes import slot_routes
from broker.net.http.snapshot_routes import snapshot_routes
from broker.net.http.tap_routes import tap_routes

if TYPE_CHECKING:
    from broker.core.auth.logins import Logins
    from broker.core.auth.permissions import Permissions
    from broker.core.vhost import Vhost
    from broker.net.tls import TlsContext
    from broker.settings import Settings
    from broker.store.files import Files
    from broker.taps.taps import Taps

__all__ = ["http_server"]


def http_server(
    settings: Settings,
    *,
    logins: Logins,
    permissions: Permissions,
    vhosts: Mapping[str, Vhost],
    taps: Taps,
    incarnation: str,
    files: Files,
    unready: Callable[[], Sequence[str]],
    down: Callable[[], Sequence[str]],
    tls: TlsContext | None,
) -> HttpServer:
    """Return the server, which does not listen yet.

    `unready` gives the reasons why the broker takes no work now, `down` names vhosts that are down.
    """
    reads, rights = FileReads(files), HttpRights(permissions)
    table = RouteTable(
        [
            *probe_routes(unready, down),
            *slot_routes(taps, incarnation, rights, reads),
            *tap_routes(taps, vhosts, rights),
            *snapshot_routes(taps, vhosts, rights, reads),
        ]
    )
    return HttpServer(settings, Respond(table, BasicLogin(logins)), reads, tls if settings.http.tls else None)
