"""Links that this process opens: one connection attempt after another, with growing pauses."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands
from pamqp.common import FieldTable

from broker.amqp.client import ClientConnection, Received
from broker.amqp.codec import encode_method
from broker.client.address import AmqpAddress
from broker.client.link import CallRefused, ClientEvents, ClientLink, ConnectionLost
from broker.core.publishing.accepted_link import LINK_MESSAGE_BYTES, LINK_QUEUE
from broker.event_log import get_logger
from broker.overlay_node.overlay_link import OverlayLink
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.settings.overlay import Neighbour

_log = get_logger()

BROKER_ARGUMENT: Final = "x-overlay-broker"
PEER_ARGUMENT: Final = "x-overlay-peer"
PROCESS_ARGUMENT: Final = "x-overlay-process"
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
OPENING_LIMIT_S: Final = 10.0
HEARTBEAT_S: Final = 6
CHANNEL: Final = 1
BASIC: Final = 60
HEADER: Final = struct.Struct(">HHQH")  # class, weight, body size, flags: no properties


class DialledCarrier(ClientEvents):
    """The connection of a link that this process opened; the other broker's first message names the reply address."""

    peer = "the other broker"
    cancelled = "the other broker ended the link"

    def __init__(
        self, address: AmqpAddress, own: str, peer: str, process: int, begin: Callable[[DialledCarrier], OverlayLink]
    ) -> None:
        client = ClientConnection(
            address.vhost, address.login, properties={}, heartbeat_s=HEARTBEAT_S, max_message_bytes=LINK_MESSAGE_BYTES
        )
        self.connection = ClientLink(client, self)
        self.link: OverlayLink | None = None
        self.has_room = True
        self._arguments: FieldTable = {BROKER_ARGUMENT: own, PEER_ARGUMENT: peer, PROCESS_ARGUMENT: process}
        self._begin = begin
        self._publish = b""
        self._late: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Consume the messages of the link; close a link that does not begin in time."""
        self._late = asyncio.get_running_loop().call_later(OPENING_LIMIT_S, self._opening_late)
        try:
            await self.connection.open()
            consume = commands.Basic.Consume(queue=LINK_QUEUE, no_ack=True, arguments=self._arguments)
            await self.connection.call(CHANNEL, consume)
        except CallRefused as refused:
            self.connection.fail(refused)

    def delivered(self, message: Received) -> None:
        """Handle a message; the first one begins the link."""
        if self.link is not None:
            self.link.take(message.body)
        elif not self.connection.ended.done():
            self._stop_timer()
            publish = commands.Basic.Publish(exchange="", routing_key=message.method.routing_key)
            self._publish = encode_method(CHANNEL, publish)
            self.link = self._begin(self)

    def writable(self, *, is_writable: bool) -> None:
        """Stop runs when the other end does not read, and allow them when it reads again."""
        self.has_room = is_writable

    def ended(self, _error: CallRefused) -> None:
        """End the link."""
        self._stop_timer()
        if self.link is not None:
            self.link.end()

    def carry(self, body: bytes) -> None:
        """Send a message."""
        self.connection.client.publish(CHANNEL, self._publish, HEADER.pack(BASIC, 0, len(body), 0), body)
        self.connection.flush()

    def close(self, text: str) -> None:
        """End the link and tell the other end why."""
        self.connection.fail(ConnectionLost(0, text), told=True)

    def _stop_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def _opening_late(self) -> None:
        self.connection.fail(ConnectionLost(0, f"the link was not open after {OPENING_LIMIT_S:.0f} s"))


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
        self._tasks = Tasks.logged("overlay.link_crashed")
        self.needed = asyncio.Event()
        self.needed.set()

    def start(self) -> None:
        """Start connecting."""
        self._tasks.start(self._run())

    def carries(self, link: OverlayLink) -> bool:
        """Return whether this end opened the link."""
        return self._carrier is not None and self._carrier.link is link

    async def stop(self) -> None:
        """End, and return when the socket is closed."""
        await self._tasks.stop()
        if self._carrier is not None:
            self._carrier.close("the broker stops")
            await self._carrier.connection.closed.wait()

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
                if loop.time() > began_s + PAUSE_MAX_S:  # a link that ends at once was refused for its contents
                    pause_s = PAUSE_S
                _log.warning("overlay.link_lost", **facts)
            elif self.needed.is_set():
                _log.warning("overlay.link_failed", **facts, next_s=round(pause_s, 1))
            await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - jitter is no secret
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _attempt(self) -> tuple[str, bool]:
        """Connect once; return why the connection ended or failed, and whether the link was open."""
        try:
            address = await asyncio.to_thread(address_of, self._neighbour)
            carrier = DialledCarrier(address, self._own, self._neighbour.broker, self._process, self._begin)
            async with asyncio.timeout(OPENING_LIMIT_S):
                await carrier.connection.dial(address)
        except TimeoutError:
            return f"no answer for {OPENING_LIMIT_S:.0f} s", False
        except ssl.SSLError as error:
            return f"TLS failed: {error}", False
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error), False
        self._carrier = carrier
        await carrier.open()
        await carrier.connection.closed.wait()
        self._carrier = None
        return carrier.connection.ended.result(), carrier.link is not None and carrier.link.session > 0


def address_of(neighbour: Neighbour) -> AmqpAddress:
    """Return where a neighbour listens. *Blocking.* Raises: OSError for a file that cannot be read."""
    address = AmqpAddress.parse(neighbour.url.get_secret_value().partition("?")[0])
    password = address.password
    if neighbour.password_file:
        password = Path(neighbour.password_file).read_text().rstrip("\r\n")
    return replace(address, password=password, cafile=neighbour.cafile)
