"""The packets that a real broker receives over overlay links, and the bytes that links carried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from broker.overlay.packets import Data, Packet, StreamRun, Update
from broker.overlay_node.held_brokers import HeldBrokers
from broker.overlay_node.overlay_link import OverlayLink
from broker.testing import Broker
from tests.overlay.sites import X, held_by, reached


class LinkPackets:
    """Records the packets that the brokers of one process receive, and passes them on one by one.

    `after` is called after each packet, and after the loss of a link.
    """

    def __init__(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch, after: Callable[[], None] | None = None
    ) -> None:
        self.packets: list[tuple[str, Packet]] = []
        self._held = held_by(broker)
        self._after = after
        monkeypatch.setattr(self._held, "received", self._received)
        monkeypatch.setattr(self._held, "lost", self._lost)

    def _received(self, link: OverlayLink, packets: Sequence[Packet]) -> None:
        for packet in packets:
            self.packets.append((link.own, packet))
            HeldBrokers.received(self._held, link, [packet])
            if self._after is not None:
                self._after()

    def _lost(self, link: OverlayLink) -> None:
        HeldBrokers.lost(self._held, link)
        if self._after is not None:
            self._after()

    @property
    def updates(self) -> list[Update]:
        """Return the updates in order."""
        return [packet for _, packet in self.packets if isinstance(packet, Update)]

    @property
    def patterns(self) -> list[tuple[set[str], set[str]]]:
        """Return the patterns added and removed by each update that has any."""
        changes = [
            ({asked.pattern for asked in update.added}, {asked.pattern for asked in update.removed})
            for update in self.updates
        ]
        return [change for change in changes if any(change)]

    def messages(self, own: str) -> int:
        """Return the number of messages that one broker of the process has received."""
        runs = [packet for name, packet in self.packets if name == own and isinstance(packet, StreamRun)]
        return sum(isinstance(element, Data) for run in runs for element in run.elements)


def interested(broker: Broker, node: str) -> set[str]:
    """Return the leaves behind a tree node that want messages of exchange x, as known to the broker's leaf."""
    driver = held_by(broker).driver
    assert driver is not None
    return set(driver.leaf.interest.vector(node, X))


async def at_rest(*brokers: Broker) -> dict[tuple[str, str], int]:
    """Wait until nothing is in flight or queued, and return the bytes carried by sender and receiver."""
    sites = [held_by(broker) for broker in brokers]

    def counts() -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]]:
        links = [(pair, link) for held in sites for pair, link in held.links.items()]
        return (
            {pair: link.sent_bytes for pair, link in links},
            {(peer, own): link.received_bytes for (own, peer), link in links},
        )

    def rests() -> bool:
        sent, received = counts()
        lags = [
            source.needed_from() <= source.sent
            for held in sites
            if held.driver is not None
            for source in held.driver.leaf.sources.values()
        ]
        return sent == received and not any(held.busy for held in sites) and not any(lags)

    while True:
        await reached(rests, "rest")
        before = counts()
        for broker in brokers:
            await broker.idle()
        if rests() and counts() == before:
            return before[0]
