"""The links of the brokers that this process holds: at most one to each neighbour."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.errors import ChannelError
from broker.core.publishing.accepted_link import LINK_QUEUE, AcceptedLink
from broker.event_log import get_logger
from broker.overlay.packets import Packet
from broker.overlay_node.dialled import BROKER_ARGUMENT, PEER_ARGUMENT, PROCESS_ARGUMENT, DialledCarrier, Dialler
from broker.overlay_node.overlay_link import Carrier, LinkEvents, OverlayLink

if TYPE_CHECKING:
    from broker.settings import Settings
    from broker.settings.overlay import Neighbour, OverlayBroker

_log = get_logger()

SESSION_BITS: Final = 63
PROCESS_BITS: Final = 62


class LocalCarrier:
    """One end of a link between two brokers of this process; messages arrive in the next turn of the loop."""

    def __init__(self) -> None:
        self.has_room = True
        self._other: OverlayLink | None = None

    def reach(self, other: OverlayLink) -> None:
        """Carry messages to the other end's link."""
        self._other = other

    def carry(self, body: bytes) -> None:
        """Send a message."""
        if self._other is not None:
            asyncio.get_running_loop().call_soon(self._other.take, body)

    def close(self, _text: str) -> None:
        """End the link at the other end too."""
        if self._other is not None:
            other, self._other = self._other, None
            asyncio.get_running_loop().call_soon(other.end)


class Links:
    """Opens the links of the settings, accepts those of neighbours, and connects brokers of this process.

    If both ends of a link have a URL, the first that reaches the other opens it. If both do at the same time, the link
    of the one whose name comes first in the alphabet is left.
    """

    def __init__(self, settings: Settings, events: LinkEvents) -> None:
        self._events = events
        self._message_bytes = (
            settings.amqp.max_message_size_bytes + settings.amqp.frame_max_bytes
        )  # a header is a frame
        self._process = secrets.randbits(PROCESS_BITS)
        self._held = {broker.broker: broker for broker in settings.overlay.node}
        self._links: dict[tuple[str, str], OverlayLink] = {}
        self._diallers: dict[tuple[str, str], Dialler] = {}

    def start(self) -> None:
        """Begin to connect."""
        for broker in self._held.values():
            for neighbour in broker.neighbours:
                if neighbour.broker in self._held:
                    if broker.broker < neighbour.broker:
                        self._connect_here(broker, neighbour)
                elif neighbour.url.get_secret_value():
                    begin = partial(self._dialled, broker, neighbour)
                    dialler = Dialler(broker.broker, self._process, neighbour, begin)
                    self._diallers[broker.broker, neighbour.broker] = dialler
                    dialler.start()

    async def stop(self) -> None:
        """End all links."""
        for link in list(self._links.values()):
            link.close("the broker stops")
        await asyncio.gather(*(dialler.stop() for dialler in self._diallers.values()))

    def accept(self, arguments: Mapping[str, Any], accepted: AcceptedLink) -> OverlayLink:
        """Return this end of a link that a neighbour opens.

        Raises: ChannelError 403 for a broker that is not a neighbour, and for a second process of its name; 406 while a
            link is open that this end keeps.
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
        """Stop to dial while a link is open that the neighbour opened."""
        _log.info("overlay.link_opened", broker=link.own, peer=link.peer)
        dialler = self._diallers.get((link.own, link.peer))
        if dialler is not None and not dialler.carries(link):
            dialler.needed.clear()
        self._events.opened(link)

    def received(self, link: OverlayLink, packets: Sequence[Packet]) -> None:
        """Pass packets on."""
        self._events.received(link, packets)

    def lost(self, link: OverlayLink) -> None:
        """Dial again."""
        pair = (link.own, link.peer)
        if self._links.get(pair) is link:
            del self._links[pair]
            if pair in self._diallers:
                self._diallers[pair].needed.set()
        self._events.lost(link)

    def _refusal(self, own: object, peer: object, text: str) -> ChannelError:
        _log.warning("overlay.link_refused", broker=own, peer=peer, reason=text)
        return ChannelError(403, f"access to queue '{LINK_QUEUE}' refused: {text}")

    def _dialled(self, broker: OverlayBroker, neighbour: Neighbour, carrier: DialledCarrier) -> OverlayLink:
        return self._begin(broker, neighbour, carrier)

    def _connect_here(self, broker: OverlayBroker, neighbour: Neighbour) -> None:
        """Connect two brokers of this process."""
        other = self._held[neighbour.broker]
        back = next(back for back in other.neighbours if back.broker == broker.broker)
        here, there = LocalCarrier(), LocalCarrier()
        one, two = self._link(broker, neighbour, here), self._link(other, back, there)
        here.reach(two)
        there.reach(one)
        for link in (one, two):
            link.greet(secrets.randbits(SESSION_BITS))

    def _begin(self, broker: OverlayBroker, neighbour: Neighbour, carrier: Carrier) -> OverlayLink:
        """Make the link of a carrier, in place of an older one, and say hello."""
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
