"""The HTTP listener: accepts clients, gives each a conversation, and ends them when the broker stops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.event_log import get_logger
from broker.net.address import close
from broker.net.descriptors import descriptors_for_clients
from broker.net.http.conversation import READ_BYTES, HttpConversation
from broker.net.http.machine import HttpLimits
from broker.net.http.refusal import HttpRefused

if TYPE_CHECKING:
    from broker.net.http.conversation import Responder
    from broker.net.http.file_reads import FileReads
    from broker.net.tls import TlsContext
    from broker.settings import Settings

__all__ = ["HttpServer"]

_log = get_logger()


class HttpServer:
    """Serves the clients of HTTP. Invariant: no more than http.connections_max of them are answered."""

    def __init__(self, settings: Settings, respond: Responder, reads: FileReads, tls: TlsContext | None) -> None:
        """Take the TLS context, None without TLS."""
        self._settings = settings
        self._respond = respond
        self._reads = reads
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._limits = HttpLimits(settings.http.header_max_bytes, settings.http.body_max_bytes)
        self._bound: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._talks: dict[asyncio.Task[None], HttpConversation] = {}
        self._descriptors_max = descriptors_for_clients()
        self._stopping = False
        self.port = 0

    @property
    def url(self) -> str:
        """The URL of the listener."""
        host = self._settings.http_host
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/"

    async def start(self, bound: list[socket.socket]) -> None:
        """Begin to listen on bound sockets, and set `port`."""
        self._bound = bound
        self.port = bound[0].getsockname()[1]
        self._servers = await self._listen()

    def take_settings(self, settings: Settings) -> None:
        """Apply changed settings; open conversations keep their limits."""
        self._settings = settings
        self._limits = HttpLimits(settings.http.header_max_bytes, settings.http.body_max_bytes)

    async def renew_tls(self) -> None:
        """Accept new clients with the current certificate; the sockets stay bound and listening."""
        if self._stopping or self._tls is None or self._tls.context is self._context:
            return
        fresh = await self._listen()
        stale, self._servers = self._servers, fresh
        for server in stale + ([] if self._bound else fresh):  # the listener began to stop meanwhile
            server.close()

    def refuse_new(self) -> None:
        """Accept no further clients, and no further requests of connected ones."""
        self._stopping = True
        for server in self._servers:
            server.close()
        close(self._bound)
        self._bound = []
        for task, talk in list(self._talks.items()):
            if talk.end():
                task.cancel()

    async def close(self, timeout_s: float) -> None:
        """Wait until all clients have their answers, and break off those that take too long."""
        if self._talks:
            await asyncio.wait(list(self._talks), timeout=timeout_s)
        self.abort()
        if self._talks:
            await asyncio.wait(list(self._talks))
        self._reads.close()

    def abort(self) -> None:
        """Abort every connection that is left."""
        for task in list(self._talks):
            task.cancel()

    async def _listen(self) -> list[asyncio.Server]:
        loop = asyncio.get_running_loop()
        self._context = None if self._tls is None else self._tls.context
        timeout_s = None if self._tls is None else self._settings.tls.handshake_timeout_ms / 1000
        return [
            await loop.create_server(
                self._protocol,
                sock=one.dup(),
                backlog=self._settings.server.backlog,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
            )
            for one in self._bound
        ]

    def _protocol(self) -> asyncio.Protocol:
        return ClientProtocol(self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[None] | None:
        http, held = self._settings.http, len(self._talks)
        found = writer.get_extra_info("socket")
        few_descriptors = found is not None and found.fileno() >= self._descriptors_max
        if self._stopping or few_descriptors or held >= 2 * http.connections_max:
            writer.transport.abort()
            return None
        talk = HttpConversation(reader, writer, self._respond, self._reads, self._limits, http.timeout_ms / 1000)
        if held >= http.connections_max:
            _log.warning("http.client_refused", reason=f"{held} connections", setting="http.connections_max")
            run = talk.turn_away(HttpRefused(503, "too many connections; try again later"))
        else:
            run = talk.run()
        task = asyncio.get_running_loop().create_task(run)
        self._talks[task] = talk
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._talks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("http.conversation_crashed", exc_info=error)


class ClientProtocol(asyncio.StreamReaderProtocol):
    """Ends the conversation with a client that has disconnected."""

    def __init__(
        self, accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], asyncio.Task[None] | None]
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(asyncio.StreamReader(READ_BYTES, loop), self._made, loop)
        self._accept = accept
        self._conversation: asyncio.Task[None] | None = None

    def _made(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._conversation = self._accept(reader, writer)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel pending work for this client."""
        super().connection_lost(error)
        if self._conversation is not None:
            self._conversation.cancel()
            self._conversation = None
