"""The links of this process's overlay brokers: at most one to each neighbour, opened by either end."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands
from pamqp.common import FieldTable

from broker.amqp.client import ClientConnection, Received
from broker.amqp.codec import encode_method
from broker.amqp.errors import ChannelError
from broker.client.address import AmqpAddress
from broker.client.link import CallRefused, ClientEvents, ClientLink, ConnectionLost
from broker.core.publishing.accepted_link import LINK_MESSAGE_BYTES, LINK_QUEUE, AcceptedLink
from broker.event_log import get_logger
from broker.overlay.packets import Packet
from broker.overlay_node.overlay_link import Carrier, LinkEvents, OverlayLink
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.settings import Settings
    from broker.settings.overlay import Neighbour, OverlayBroker

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
    """The connection of a link that this process opens. It sends with the routing key of the first received message."""

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
        """Consume the link's messages once its channel is open; close the link if the first one comes too late."""
        self._late = asyncio.get_running_loop().call_later(OPENING_LIMIT_S, self._opening_late)
        try:
            await self.connection.open()
            consume = commands.Basic.Consume(queue=LINK_QUEUE, no_ack=True, arguments=self._arguments)
            await self.connection.call(CHANNEL, consume)
        except CallRefused as refused:
            self.connection.fail(refused)

    def delivered(self, message: Received) -> None:
        """Process a message; the first one starts the link."""
        if self.link is not None:
            self.link.take(message.body)
        elif not self.connection.ended.done():
            self._stop_timer()
            publish = commands.Basic.Publish(exchange="", routing_key=message.method.routing_key)
            self._publish = encode_method(CHANNEL, publish)
            self.link = self._begin(self)

    def writable(self, *, is_writable: bool) -> None:
        """Record whether the other end reads fast enough for runs."""
        self.has_room = is_writable

    def ended(self, _error: CallRefused) -> None:
        self._stop_timer()
        if self.link is not None:
            self.link.end()

    def carry(self, body: bytes) -> None:
        self.connection.client.publish(CHANNEL, self._publish, HEADER.pack(BASIC, 0, len(body), 0), body)
        self.connection.flush()

    def close(self, text: str) -> None:
        self.connection.fail(ConnectionLost(0, text), notify=True)

    def _stop_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def _opening_late(self) -> None:
        self.connection.fail(ConnectionLost(0, f"the link was not open after {OPENING_LIMIT_S:.0f} s"))


class Dialler:
    """Keep a link to one neighbour open.

    Shapes: `begin` creates the link of a carrier once the other broker is ready. `needed` is cleared while a link that
        the neighbour opened is open.
    """

    def __init__(
        self, own: str, process: int, neighbour: Neighbour, begin: Callable[[DialledCarrier], OverlayLink]
    ) -> None:
        self._process = process
        self._own = own
        self._neighbour = neighbour
        self._begin = begin
        self._carrier: DialledCarrier | None = None
        self._tasks = Tasks.logged("overlay.link_crashed")
        self.needed = asyncio.Event()
        self.needed.set()

    def start(self) -> None:
        self._tasks.start(self._run())

    def carries(self, link: OverlayLink) -> bool:
        """Return whether this end opened the link."""
        return self._carrier is not None and self._carrier.link is link

    async def stop(self) -> None:
        """Close the link, and wait until the socket is closed."""
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
                if loop.time() > began_s + PAUSE_MAX_S:  # a link that ended sooner was refused: keep the long pause
                    pause_s = PAUSE_S
                _log.warning("overlay.link_lost", **facts)
            elif self.needed.is_set():
                _log.warning("overlay.link_failed", **facts, next_s=round(pause_s, 1))
            await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - jitter is not secret
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _attempt(self) -> tuple[str, bool]:
        """Connect once, wait for the end of the connection, and return the reason and whether the link was open."""
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
    """Return the address of a neighbour. *Blocking.* Raises: OSError if the password file cannot be read."""
    address = AmqpAddress.parse(neighbour.url.get_secret_value().partition("?")[0])
    password = address.password
    if neighbour.password_file:
        password = Path(neighbour.password_file).read_text().rstrip("\r\n")
    return replace(address, password=password, cafile=neighbour.cafile)


SESSION_BITS: Final = 63
PROCESS_BITS: Final = 62


class LocalCarrier:
    """The carrier of a link between two brokers of this process. Messages arrive in the next iteration of the loop."""

    def __init__(self) -> None:
        self.has_room = True
        self._other: OverlayLink | None = None

    def connect(self, other: OverlayLink) -> None:
        """Send messages to the link of the other end."""
        self._other = other

    def carry(self, body: bytes) -> None:
        if self._other is not None:
            asyncio.get_running_loop().call_soon(self._other.take, body)

    def close(self, _text: str) -> None:
        if self._other is not None:
            other, self._other = self._other, None
            asyncio.get_running_loop().call_soon(other.end)


class Links:
    """Open the links defined in the settings, accept those of neighbours, and connect the brokers of this process.

    If both ends of a link have a URL, the first one that reaches the other opens it. If both open one at the same time,
    the one opened by the alphabetically first broker remains.
    """

    def __init__(self, settings: Settings, events: LinkEvents) -> None:
        self._events = events
        self._message_bytes = (
            settings.amqp.max_message_size_bytes + settings.amqp.frame_max_bytes
        )  # a content header fits in a frame
        self._process = secrets.randbits(PROCESS_BITS)
        self._held = {broker.broker: broker for broker in settings.overlay.node}
        self._links: dict[tuple[str, str], OverlayLink] = {}
        self._diallers: dict[tuple[str, str], Dialler] = {}

    def start(self) -> None:
        for broker in self._held.values():
            for neighbour in broker.neighbours:
                if neighbour.broker in self._held:
                    if broker.broker < neighbour.broker:
                        self._connect_here(broker, neighbour)
                elif neighbour.url.get_secret_value():
                    begin = partial(self._begin, broker, neighbour)
                    dialler = Dialler(broker.broker, self._process, neighbour, begin)
                    self._diallers[broker.broker, neighbour.broker] = dialler
                    dialler.start()

    async def stop(self) -> None:
        """Close all links."""
        for link in list(self._links.values()):
            link.close("the broker stops")
        await asyncio.gather(*(dialler.stop() for dialler in self._diallers.values()))

    def accept(self, arguments: Mapping[str, Any], accepted: AcceptedLink) -> OverlayLink:
        """Return this end of a link that a neighbour opens.

        Raises: ChannelError 403 unless a broker of this process has that neighbour, and for a second process with its
            name; 406 if a link that is already open is kept.
        """
        peer, own = arguments.get(BROKER_ARGUMENT), arguments.get(PEER_ARGUMENT)
        broker = self._held.get(own) if isinstance(own, str) else None
        if broker is None:
            raise self._refusal(own, peer, f"no broker '{own}' of the overlay is here")
        neighbour = next((neighbour for neighbour in broker.neighbours if neighbour.broker == peer), None)
        if neighbour is None or peer in self._held:
            raise self._refusal(own, peer, f"'{own}' has no neighbour '{peer}' elsewhere")
        pair = (broker.broker, neighbour.broker)
        known = self._links.get(pair)
        if known is not None and known.is_open:
            if known.process != arguments.get(PROCESS_ARGUMENT, known.process) and known.answers():
                raise self._refusal(own, peer, f"another process named '{peer}' has a link to '{own}'")
            if pair in self._diallers and pair[0] < pair[1]:
                raise ChannelError(406, f"'{own}' has a link to '{peer}' already")
        return self._begin(broker, neighbour, accepted)

    # -- events of the links ------------------------------------------------------------------------------------------

    def opened(self, link: OverlayLink) -> None:
        """Stop dialling while a link that the neighbour opened is open."""
        _log.info("overlay.link_opened", broker=link.own, peer=link.peer)
        dialler = self._diallers.get((link.own, link.peer))
        if dialler is not None and not dialler.carries(link):
            dialler.needed.clear()
        self._events.opened(link)

    def received(self, link: OverlayLink, packets: Sequence[Packet]) -> None:
        self._events.received(link, packets)

    def lost(self, link: OverlayLink) -> None:
        """Resume dialling, unless a newer link has taken the place of this one, and report the loss."""
        pair = (link.own, link.peer)
        if self._links.get(pair) is link:
            del self._links[pair]
            if pair in self._diallers:
                self._diallers[pair].needed.set()
        self._events.lost(link)

    def _refusal(self, own: object, peer: object, text: str) -> ChannelError:
        _log.warning("overlay.link_refused", broker=own, peer=peer, reason=text)
        return ChannelError(403, f"access to queue '{LINK_QUEUE}' refused: {text}")

    def _connect_here(self, broker: OverlayBroker, neighbour: Neighbour) -> None:
        """Connect two brokers of this process."""
        other = self._held[neighbour.broker]
        back = next(back for back in other.neighbours if back.broker == broker.broker)
        here, there = LocalCarrier(), LocalCarrier()
        one, two = self._link(broker, neighbour, here), self._link(other, back, there)
        here.connect(two)
        there.connect(one)
        for link in (one, two):
            link.greet(secrets.randbits(SESSION_BITS))

    def _begin(self, broker: OverlayBroker, neighbour: Neighbour, carrier: Carrier) -> OverlayLink:
        """Create the link of a carrier, which replaces an older link, and send the hello."""
        link = self._link(broker, neighbour, carrier)
        link.greet(secrets.randbits(SESSION_BITS))
        return link

    def _link(self, broker: OverlayBroker, neighbour: Neighbour, carrier: Carrier) -> OverlayLink:
        pair = (broker.broker, neighbour.broker)
        known = self._links.get(pair)
        if known is not None:
            known.close("a newer link takes its place")
            self._links.pop(pair, None)
        link = OverlayLink(
            broker.broker,
            broker.node,
            neighbour.broker,
            neighbour.node,
            carrier,
            self,
            leaf=broker.leaf,
            subscriptions=neighbour.subscriptions == "all",
            message_bytes=self._message_bytes,
            own_process=self._process,
        )
        self._links[pair] = link
        return link
