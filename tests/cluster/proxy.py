"""A proxy in front of PostgreSQL that injects faults at named points of a call.

It parses PostgreSQL's messages to know which statement a client executes and when the answer is complete. The statement
runs in a transaction of its own, which is committed before ReadyForQuery: if the proxy drops an answer with
ReadyForQuery, the client does not know of the commit.

    with Proxy(postgres.url) as proxy:
        trap = proxy.trap(r"commit\\(", Point.DONE, then=Then.CUT)
        ... # a client of proxy.url calls commit()
        trap.sprung.wait()
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from broker.net.address import close_servers

Value = TypeVar("Value")

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
CALL_PARTS: Final = frozenset(b"PBDEC")
"""Messages that are followed by a Sync or a Flush: Parse, Bind, Describe, Execute, Close."""
LIMIT_BYTES: Final = 1 << 26


class Point(Enum):
    """The point of a call at which a trap springs."""

    ASKED = "before the call reaches the server"
    SENT = "after the call was sent to the server, before its answer is awaited"
    DONE = "after the server answered and committed, before the client knows"


class Then(Enum):
    """The fate of the connection after the action of a trap."""

    CUT = "cut"
    FORWARD = "continue as if nothing had happened"


@dataclass(eq=False)
class Trap:
    """Fires once, at a call whose SQL matches. `action` runs in a thread while the call waits."""

    pattern: re.Pattern[str]
    point: Point
    then: Then
    action: Callable[[], None]
    sprung: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def act(self) -> None:
        """Run the action to its end, even if the connection ends meanwhile, as that of a killed node does."""
        try:
            self.action()
        finally:
            self.done.set()


class Proxy:
    """Listens on a free port of 127.0.0.1; its clients reach the server at `url` through it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._links: set[_Link] = set()
        self.traps: list[Trap] = []
        self.calls: list[str] = []
        """The SQL of all calls so far."""
        self._flows = self._do(self._event())
        self._server = self._do(asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LIMIT_BYTES))
        self.port: int = self._server.sockets[0].getsockname()[1]
        login = parts.netloc.rpartition("@")[0]
        self.url = parts._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the proxy and its connections."""

        async def end() -> None:
            close_servers([self._server])
            for _ in range(3):  # a task that is cancelled before its first step cannot end its connection
                await asyncio.sleep(0)
            self._cut()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def redirect(self, url: str) -> None:
        """Forward new connections to another server, as an address that follows the primary does."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)

    # ---- faults

    def trap(
        self, pattern: str, point: Point, then: Then = Then.CUT, action: Callable[[], None] = lambda: None
    ) -> Trap:
        """Set a trap for the next call whose SQL matches."""
        trap = Trap(re.compile(pattern, re.IGNORECASE), point, then, action)
        self.traps.append(trap)
        return trap

    def disarm(self, trap: Trap) -> None:
        """Remove a trap that has not sprung."""
        if trap in self.traps:
            self.traps.remove(trap)

    def cut(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._cut)

    def hold(self) -> None:
        """Forward nothing, as a network that loses every packet; connections stay open."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def release(self) -> None:
        """Forward again, held messages first."""
        self._loop.call_soon_threadsafe(self._flows.set)

    # ---- connections

    def _do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _event(self) -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event

    def _cut(self) -> None:
        for link in [*self._links]:
            link.end()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):  # Python 3.11 reports a cancelled task as an error
            await self._flows.wait()
            upstream = await asyncio.open_connection(*self._target, limit=LIMIT_BYTES)
            link = _Link(self, (reader, writer), upstream)
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)
                link.end()
        writer.transport.abort()

    async def flow(self) -> None:
        """Wait while `hold` is in effect."""
        await self._flows.wait()

    def claim(self, sql: str) -> Trap | None:
        """Return and remove the trap that this call springs."""
        self.calls.append(sql)
        for trap in self.traps:
            if trap.pattern.search(sql):
                self.traps.remove(trap)
                return trap
        return None


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through the proxy. `answers` has the trap, if any, of the call of each expected ReadyForQuery."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self.proxy = proxy
        self.client_reader, self.client = client
        self.server_reader, self.server = server
        self.statements: dict[bytes, str] = {}
        self.answers: deque[Trap | None] = deque([None])  # of the login

    def end(self) -> None:
        """End both connections at once."""
        self.client.transport.abort()
        self.server.transport.abort()

    async def run(self) -> None:
        """Forward until one side ends."""
        try:
            await self._log_in()
        except (OSError, EOFError):
            return
        ways = [asyncio.ensure_future(self._up()), asyncio.ensure_future(self._down())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _log_in(self) -> None:
        while True:
            size = await self.client_reader.readexactly(4)
            body = await self.client_reader.readexactly(int.from_bytes(size, "big") - 4)
            self.server.write(size + body)
            if int.from_bytes(body[:4], "big") not in (SSL_REQUEST, GSS_REQUEST):
                return
            self.client.write(await self.server_reader.readexactly(1))

    async def _up(self) -> None:
        waiting: list[bytes] = []
        sql = ""
        while True:
            head = await self.client_reader.readexactly(5)
            body = await self.client_reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            waiting.append(head + body)
            kind = head[0]
            if kind == ord("P"):
                name, query, _ = body.split(b"\0", 2)
                self.statements[name] = query.decode()
            elif kind == ord("B"):
                sql = self.statements.get(body.split(b"\0", 2)[1], "")
            elif kind == ord("Q"):
                sql = body.rstrip(b"\0").decode()
            if kind in CALL_PARTS:
                continue
            await self.proxy.flow()
            octets, waiting = b"".join(waiting), []
            if kind not in (ord("S"), ord("Q")):
                self.server.write(octets)
                continue
            trap = self.proxy.claim(sql) if sql else None
            sql = ""
            if trap is not None and trap.point is Point.ASKED:
                await self._spring(trap)
                trap = None
            self.answers.append(trap)
            self.server.write(octets)
            await self.server.drain()
            if trap is not None and trap.point is Point.SENT:
                await self._spring(trap)

    async def _down(self) -> None:
        held: list[bytes] = []
        while True:
            head = await self.server_reader.readexactly(5)
            held.append(head + await self.server_reader.readexactly(int.from_bytes(head[1:], "big") - 4))
            trap = self.answers[0] if self.answers else None
            if head[0] == ord("Z") and self.answers:
                self.answers.popleft()
            elif trap is not None:
                continue
            if trap is not None and trap.point is Point.DONE:
                await self._spring(trap)
            elif trap is not None:
                await self._until(trap.done)
            await self.proxy.flow()
            self.client.write(b"".join(held))
            held.clear()

    async def _until(self, event: threading.Event) -> None:
        await asyncio.get_running_loop().run_in_executor(None, event.wait)

    async def _spring(self, trap: Trap) -> None:
        trap.sprung.set()
        await asyncio.get_running_loop().run_in_executor(None, trap.act)
        if trap.then is Then.CUT:
            self.end()
            raise ConnectionAbortedError
