"""One link of the overlay: it sends packets to a neighbour, and receives the neighbour's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from broker.core.publishing.accepted_link import LINK_MESSAGE_BYTES
from broker.event_log import get_logger
from broker.overlay.packets import NO_LIMIT, Contradiction, Hello, Packet, Resync
from broker.overlay.wire import VERSION, DamagedPacket, PacketPieces, decode, encode

_log = get_logger()

ANSWER_LIMIT_S: Final = 1.0
SUBSCRIPTIONS: Final = ("none", "all")  # as the settings name them


class LinkFault(Exception):
    """The other broker is not the expected one, or sent an invalid message; the text is the reason."""


class Carrier(Protocol):
    """Send messages to the other end of a link."""

    @property
    def has_room(self) -> bool:
        """Whether the other end reads fast enough for further runs."""

    def carry(self, body: bytes) -> None:
        """Send a message."""

    def close(self, text: str) -> None:
        """Close the link, and send the reason to the other end."""


class LinkEvents(Protocol):
    """Receive the events of links. A link calls these methods only from `take`, `close`, `lost` and `end`."""

    def opened(self, link: OverlayLink) -> None:
        """Handle a link that is open: both ends have sent their hello."""

    def received(self, link: OverlayLink, packets: Sequence[Packet]) -> None:
        """Process packets of an open link. Raises: Contradiction if they contradict the announcements of others."""

    def lost(self, link: OverlayLink) -> None:
        """Handle the end of an open link."""


class OverlayLink:
    """A link between a broker of this process and a neighbour.

    Shapes: `own` and `peer` are the names of the brokers, `own_node` and `node` those of their tree nodes. `session`
        and `process` are those of the neighbour's Hello, or 0 before it.
    Units: `sent_bytes` and `received_bytes` count the packets of the link, without AMQP's frames. `limit_bytes` is the
        size of the largest stream message that the neighbour accepts.
    Invariant: the first packet in each direction is a Hello.
    """

    def __init__(
        self,
        own: str,
        own_node: str,
        peer: str,
        node: str,
        carrier: Carrier,
        events: LinkEvents,
        *,
        leaf: bool,
        subscriptions: bool = True,
        message_bytes: int = NO_LIMIT,
        own_process: int = 0,
    ) -> None:
        """Take the fields of the Hello: whether this broker is a leaf, whether patterns are announced over the link,
        the largest message of a stream that this end accepts, and the number of this process.
        """
        self.own = own
        self.own_node = own_node
        self.peer = peer
        self.node = node
        self.session = 0
        self.process = 0
        self._own_process = own_process
        self._asked_s = 0.0
        self.limit_bytes = 0
        self.is_open = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self._leaf = leaf
        self._subscriptions = subscriptions
        self._message_bytes = message_bytes
        self._arriving = PacketPieces(message_bytes)
        self._carrier = carrier
        self._events = events
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._ended = False

    @property
    def full(self) -> bool:
        """Whether to send no runs for now, except requested ones; other packets may always be sent."""
        return not self._carrier.has_room

    def greet(self, session: int) -> None:
        """Send the Hello of a session."""
        limits = self._subscriptions, self._message_bytes, self._own_process
        self.send(Hello(self.own, self.own_node, session, self._leaf, VERSION, *limits))

    def send(self, packet: Packet) -> None:
        """Send a packet, together with others of this iteration of the loop."""
        if self._ended:
            return
        piece = encode(packet)
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self.flush)
        self._pieces.append(piece)
        self._waiting_bytes += len(piece)
        if self._waiting_bytes >= LINK_MESSAGE_BYTES:
            self.flush()

    def answers(self) -> bool:
        """Return whether the neighbour may be alive. The first call since its last message sends a request; until a
        second after that call, the neighbour counts as alive.
        """
        now_s = asyncio.get_running_loop().time()
        if not self._asked_s:
            self._asked_s = now_s
            self.send(Resync())
        return now_s < self._asked_s + ANSWER_LIMIT_S

    def flush(self) -> None:
        if self._pieces and not self._ended:
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._waiting_bytes = 0
            self.sent_bytes += len(body)
            for at in range(0, len(body), LINK_MESSAGE_BYTES):
                self._carrier.carry(body[at : at + LINK_MESSAGE_BYTES])

    def take(self, body: bytes) -> None:
        """Process a message of the neighbour."""
        if self._ended:
            return
        self.received_bytes += len(body)
        self._asked_s = 0.0
        try:
            packets = decode(self._arriving.add(body))
            if not self.is_open:
                packets = self._open(packets)
            if packets:
                self._events.received(self, packets)
        except (Contradiction, DamagedPacket, LinkFault) as fault:
            _log.warning("overlay.link_refused", broker=self.own, peer=self.peer, reason=str(fault))
            self.close(str(fault))

    def close(self, text: str) -> None:
        """Send the waiting packets and close the link, with the reason for the other end."""
        if not self._ended:
            self.flush()
            self.end()
            self._carrier.close(text)

    def lost(self) -> None:
        """Handle the end of a link that the neighbour opened and closed."""
        if self.is_open:
            reason = "the neighbour closed the connection"
            _log.warning("overlay.link_lost", broker=self.own, peer=self.peer, reason=reason)
        self.end()

    def end(self) -> None:
        """Handle the end of the carrier."""
        if not self._ended:
            self._ended = True
            if self.is_open:
                self.is_open = False
                self._events.lost(self)

    def _open(self, packets: list[Packet]) -> list[Packet]:
        """Check the hello of the neighbour, and return the packets after it. Raises: LinkFault."""
        if not packets:
            return packets
        hello = packets[0]
        if not isinstance(hello, Hello):
            raise LinkFault("a link begins with a hello")
        if hello.version != VERSION:
            raise LinkFault(f"{hello.broker} speaks version {hello.version} of the overlay's protocol, not {VERSION}")
        if (hello.broker, hello.tree_node) != (self.peer, self.node):
            raise LinkFault(
                f"{hello.broker} of tree node {hello.tree_node} answers, not {self.peer} of tree node {self.node}"
            )
        if hello.subscriptions is not self._subscriptions:
            raise LinkFault(
                f'{self.own} has subscriptions = "{SUBSCRIPTIONS[self._subscriptions]}" for this link, '
                f'and {self.peer} has "{SUBSCRIPTIONS[hello.subscriptions]}": set the same at both ends'
            )
        self.session = hello.session
        self.process = hello.process
        self.limit_bytes = hello.message_bytes
        self.is_open = True
        self._events.opened(self)
        return packets[1:]
