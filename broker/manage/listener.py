"""The listener of an HTTP port: accepts clients, runs uvicorn's protocol for each, and closes them at shutdown."""

from __future__ import annotations

import asyncio
import socket
import ssl

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from broker.event_log import get_logger
from broker.manage.client import heaviest_user
from broker.manage.client_protocol import ClientProtocol
from broker.manage.refusal import HttpRefused
from broker.net.address import close, listen
from broker.net.pending_clients import PendingClients, descriptors_for_clients
from broker.net.tls import TlsContext
from broker.net.tls_server import TlsServer
from broker.settings import Settings

KEEP_ALIVE_S = 86_400  # uvicorn's limit for idle clients, so high that it has no effect

_log = get_logger()


class ManageListener:
    """The listener of one port.

    A client is pending unless one of its requests has been admitted after a login and is not answered yet. There is
    room for http.connections_max pending clients, and for as many with admitted requests, so that clients without a
    login cannot displace users. At the limit, the oldest pending client of the network with the most is dropped.
    """

    def __init__(self, app: ASGIApp, settings: Settings, host: str, tls: TlsContext | None) -> None:
        """`host` is the address in the settings; `tls` is None without TLS."""
        self._app = app
        self._host = host
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._state = ServerState()
        self._bound: list[socket.socket] = []
        self._servers: list[asyncio.Server | TlsServer] = []
        self._clients: dict[ClientProtocol, None] = {}
        self._pending: PendingClients[ClientProtocol] = PendingClients()
        self._answered: dict[ClientProtocol, tuple[str, str]] = {}  # user and network; oldest request first
        self._empty = asyncio.Event()
        self._empty.set()
        self._descriptors_max = descriptors_for_clients()
        self._stopping = False
        self.port = 0
        self.apply_settings(settings)

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}/"

    @property
    def clients(self) -> int:
        return len(self._clients)

    async def start(self, bound: list[socket.socket]) -> None:
        """Listen on bound sockets, and set `port`. Raises: CannotListen."""
        self._bound = bound
        self.port = bound[0].getsockname()[1]
        self._servers = await self._listen()

    def apply_settings(self, settings: Settings) -> None:
        """Apply changed settings; connected clients keep their deadlines."""
        self._settings = settings
        self._limits = settings.http
        self._config = Config(
            self._app,
            loop="none",
            http=ClientProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            workers=1,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=self._limits.header_max_bytes,
        )
        self._config.load()

    async def renew_tls(self) -> None:
        """Accept new clients with the current certificate; the sockets stay bound and listening."""
        if self._stopping or self._tls is None or self._tls.context is self._context:
            return
        fresh = await self._listen()
        stale, self._servers = self._servers, fresh
        for server in stale + ([] if self._bound else fresh):  # without sockets, the listener has begun to stop
            server.close()

    def refuse_new(self) -> None:
        """Accept no further clients, and no further requests of connected ones."""
        self._stopping = True
        for server in self._servers:
            server.close()
        close(self._bound)
        self._bound = []
        for client in list(self._clients):
            client.last()

    async def close(self, timeout_s: float) -> None:
        """Wait until all clients have their answers, then abort the connections that remain after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        self.abort()
        await self._empty.wait()
        tasks = [task for task in self._state.tasks if not task.done()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        for server in self._servers:
            if isinstance(server, TlsServer):
                server.abort()
        for client in list(self._clients):
            client.abort()

    async def _listen(self) -> list[asyncio.Server | TlsServer]:
        loop, backlog = asyncio.get_running_loop(), self._settings.server.backlog
        self._context = None if self._tls is None else self._tls.context
        timeout_s = self._settings.tls.handshake_timeout_ms / 1000
        servers: list[asyncio.Server | TlsServer] = []
        for one in self._bound:
            listen(one, backlog)
            copy = one.dup()
            if self._context is None:
                servers.append(await loop.create_server(self._protocol, sock=copy, backlog=backlog))
            else:
                context = self._context
                servers.append(TlsServer(copy, self._protocol, context, backlog=backlog, timeout_s=timeout_s))
        return servers

    def _protocol(self) -> asyncio.Protocol:
        return ClientProtocol(self._config, self._state, self._limits.timeout_ms / 1000, self)

    # -- limits of clients --------------------------------------------------------------------------------------------

    def enter(self, client: ClientProtocol, descriptor: int) -> None:
        """Add a new client; if there are too many, this client or another one is disconnected."""
        self._clients[client] = None
        self._empty.clear()
        scarce = descriptor >= self._descriptors_max
        if self._stopping or scarce:
            client.abort()
        else:
            self._pending.add(client, client.network)
        self._make_room(scarce=scarce)

    def admit(self, client: ClientProtocol, user: str) -> None:
        """Count a request of a user who has logged in.

        At the limit, drop a client of the user and network with the most requests: one that delays its answer, or else
        the oldest. Raises: HttpRefused (503) if the caller has the most requests, and none of them delays its answer.
        """
        own = (user, client.network)
        if len(self._answered) >= self._limits.connections_max:
            heaviest = heaviest_user(self._answered.values(), own)
            theirs = [one for one, user_of in self._answered.items() if user_of == heaviest]
            dropped = next((one for one in theirs if one.delays), theirs[0] if heaviest != own else None)
            if dropped is None:
                raise HttpRefused(503, "too many requests at the same time; try again later", fatal=True)
            self._drop(dropped)
        self._pending.remove(client)
        self._answered[client] = own

    def release(self, client: ClientProtocol) -> None:
        """Count a client as pending again, because its request was answered."""
        if self._answered.pop(client, None) is not None:
            self._pending.add(client, client.network)
            self._make_room()

    def leave(self, client: ClientProtocol) -> None:
        del self._clients[client]
        self._pending.remove(client)
        self._answered.pop(client, None)
        if not self._clients:
            self._empty.set()

    def _make_room(self, *, scarce: bool = False) -> None:
        """Drop a pending client if there are too many, or if descriptors are `scarce`."""
        if scarce or len(self._pending) > self._limits.connections_max:
            client = self._pending.take()
            if client is not None:
                self._drop(client)

    def _drop(self, client: ClientProtocol) -> None:
        self._answered.pop(client, None)
        limit = f"{len(self._clients)} connections"
        _log.warning(
            "http.client_dropped", conn=client.client_end.peer.name, reason=limit, setting="http.connections_max"
        )
        client.abort()
