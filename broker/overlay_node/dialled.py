"""Links that this process opens: one connection attempt after the other, with growing pauses."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, urlsplit

from broker.amqp.client import ClientConnection, ClientState, LinkRefused
from broker.core.publishing.accepted_link import LINK_MESSAGE_BYTES, LINK_QUEUE
from broker.event_log import get_logger
from broker.net.transport import write_pieces
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.overlay_node.overlay_link import OverlayLink
    from broker.settings.overlay import Neighbour

__all__ = ["BROKER_ARGUMENT", "PEER_ARGUMENT", "PROCESS_ARGUMENT", "Dialler", "NeighbourAddress"]

_log = get_logger()

BROKER_ARGUMENT: Final = "x-overlay-broker"
PEER_ARGUMENT: Final = "x-overlay-peer"
PROCESS_ARGUMENT: Final = "x-overlay-process"
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
OPENING_LIMIT_S: Final = 10.0
HEARTBEAT_S: Final = 6
CLOSING_LIMIT_S: Final = 2.0  # for output that the other broker has not read yet
HIGH_WATER_BYTES: Final = 256 << 10
PORTS: Final = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class NeighbourAddress:
    """Where a neighbour listens, and how to log in there."""

    host: str
    port: int
    vhost: str
    user: str
    password: str
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, neighbour: Neighbour) -> NeighbourAddress:
        """Return where a neighbour is. *Blocking.* Raises: OSError for a file that cannot be read."""
        parts = urlsplit(neighbour.url.get_secret_value())
        password = unquote(parts.password or "guest")
        if neighbour.password_file:
            password = Path(neighbour.password_file).read_text().rstrip("\r\n")
        tls = ssl.create_default_context(cafile=neighbour.cafile or None) if parts.scheme == "amqps" else None
        vhost = unquote(parts.path[1:]) or "/"
        port = parts.port or PORTS[parts.scheme]
        return cls(parts.hostname or "", port, vhost, unquote(parts.username or "guest"), password, tls)


class DialledCarrier(asyncio.Protocol):
    """The socket of a link that this process opened.

    Shapes: `ended` becomes the reason for which the connection ended.
    """

    def __init__(self, target: NeighbourAddress, own: str, peer: str, process: int) -> None:
        self._transport: asyncio.Transport | None = None
        self._client = ClientConnection(
            target.user,
            target.password,
            target.vhost,
            LINK_QUEUE,
            self._message,
            arguments={BROKER_ARGUMENT: own, PEER_ARGUMENT: peer, PROCESS_ARGUMENT: process},
            heartbeat_s=HEARTBEAT_S,
            max_message_bytes=LINK_MESSAGE_BYTES,
        )
        self._key = ""
        self._reason = ""
        self._heard = False
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._begin: Callable[[], OverlayLink] | None = None
        self._link: OverlayLink | None = None
        self.has_room = True
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def expect(self, begin: Callable[[], OverlayLink]) -> None:
        """Call `begin` once the other broker is ready."""
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the other broker."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._timer = asyncio.get_running_loop().call_later(OPENING_LIMIT_S, self._opening_late)
        self._write()

    def data_received(self, data: bytes) -> None:
        """Feed the connection."""
        self._heard = True
        try:
            self._client.feed(data)
        except LinkRefused as refused:
            self._fail(str(refused))
        self._write()
        if self._client.state is ClientState.CLOSED:
            self._hang_up()

    def pause_writing(self) -> None:
        """Stop runs: the other end does not read."""
        self.has_room = False

    def resume_writing(self) -> None:
        """Allow runs again."""
        self.has_room = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.end()
        if not self.ended.done():
            self.ended.set_result(self._reason or (str(exc) if exc else "the other broker closed the connection"))

    def carry(self, body: bytes) -> None:
        """Send a message."""
        self._client.publish(self._key, body)
        self._write()

    def close(self, text: str) -> None:
        """End the link and tell the other end why."""
        self._fail(text)
        self._client.close(text)
        self._write()
        self._hang_up()

    def _message(self, key: str, body: bytes) -> None:
        """Take a message; the first one says where to send ours."""
        if self._link is not None:
            self._link.take(body)
        elif self._begin is not None:
            self._key = key
            self._link = self._begin()
            self._beat()

    def _beat(self) -> None:
        """Send a heartbeat, and end a connection that was silent for two intervals."""
        if self._timer is not None:
            self._timer.cancel()
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        interval_s = self._client.heartbeat_s
        if not interval_s:
            return
        if self._silent > 4:  # half intervals
            self._fail(f"no heartbeat for {2 * interval_s} s")
            self._abort()
            return
        self._client.beat()
        self._write()
        self._timer = asyncio.get_running_loop().call_later(interval_s / 2, self._beat)

    def _opening_late(self) -> None:
        self._fail(f"the link was not open after {OPENING_LIMIT_S:.0f} s")
        self._hang_up()

    def _fail(self, reason: str) -> None:
        self._reason = self._reason or reason

    def _write(self) -> None:
        transport = self._transport
        pieces = self._client.take_output()
        if pieces and transport is not None and not transport.is_closing():
            write_pieces(transport, pieces, HIGH_WATER_BYTES)

    def _hang_up(self) -> None:
        """Close the socket; what the other broker does not read in time is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(CLOSING_LIMIT_S, self._abort)
            self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Dialler:
    """Keeps a link to one neighbour open.

    Shapes: `begin` makes the link of a carrier when the other broker is ready. `needed` is cleared while a link exists
        that the neighbour opened.
    """

    def __init__(
        self, own: str, process: int, neighbour: Neighbour, begin: Callable[[DialledCarrier], OverlayLink]
    ) -> None:
        """`process` is the number of this process."""
        self._process = process
        self._own = own
        self._neighbour = neighbour
        self._begin = begin
        self._carrier: DialledCarrier | None = None
        self._link: OverlayLink | None = None
        self._tasks = Tasks.logged("overlay.link_crashed")
        self.needed = asyncio.Event()
        self.needed.set()

    def start(self) -> None:
        """Begin to connect."""
        self._tasks.start(self._run())

    def carries(self, link: OverlayLink) -> bool:
        """Return whether a link is the one that this end opened."""
        return self._link is link

    async def stop(self) -> None:
        """End, and return when the socket is closed."""
        await self._tasks.stop()
        if self._carrier is not None:
            self._carrier.close("the broker stops")
            await self._carrier.ended

    async def _run(self) -> None:
        pause_s, loop = PAUSE_S, asyncio.get_running_loop()
        while True:
            await self.needed.wait()
            began_s = loop.time()
            try:
                reason, was_open = await self._attempt()
            except Exception as error:  # noqa: BLE001 - a defect: the neighbour is dialled again
                reason, was_open = "unexpected error, see the broker's log", False
                _log.error("overlay.link_crashed", broker=self._own, peer=self._neighbour.broker, exc_info=error)
            facts: dict[str, Any] = {"broker": self._own, "peer": self._neighbour.broker, "reason": reason}
            if was_open:
                if loop.time() > began_s + PAUSE_MAX_S:  # a link that ends at once is refused for what it says
                    pause_s = PAUSE_S
                _log.warning("overlay.link_lost", **facts)
            elif self.needed.is_set():
                _log.warning("overlay.link_failed", **facts, next_s=round(pause_s, 1))
            await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - jitter is no secret
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _attempt(self) -> tuple[str, bool]:
        """Connect once; return why the connection ended or failed, and whether the link was open."""
        loop = asyncio.get_running_loop()
        try:
            target = await loop.run_in_executor(None, NeighbourAddress.of, self._neighbour)
            carrier = DialledCarrier(target, self._own, self._neighbour.broker, self._process)
            carrier.expect(partial(self._ready, carrier))
            async with asyncio.timeout(OPENING_LIMIT_S):
                await loop.create_connection(lambda: carrier, target.host, target.port, ssl=target.tls)
        except TimeoutError:
            return f"no answer for {OPENING_LIMIT_S:.0f} s", False
        except ssl.SSLError as error:
            return f"TLS failed: {error}", False
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error), False
        self._carrier = carrier
        reason = await asyncio.shield(carrier.ended)
        was_open = self._link is not None and self._link.session > 0
        self._carrier = self._link = None
        return reason, was_open

    def _ready(self, carrier: DialledCarrier) -> OverlayLink:
        self._link = link = self._begin(carrier)
        return link
