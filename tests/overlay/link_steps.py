"""Links whose messages arrive in steps under a test's control: each step delivers all messages in flight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from broker.overlay_node.overlay_link import OverlayLink
from broker.testing import Broker
from tests.overlay.sites import held_by, reached


class LinkSteps:
    """Holds back the messages that the brokers' links receive. A round trip takes two steps."""

    def __init__(self, brokers: Sequence[Broker], monkeypatch: pytest.MonkeyPatch) -> None:
        self._brokers = brokers
        self._held: list[tuple[OverlayLink, bytes]] = []
        self._links = {pair: link for broker in brokers for pair, link in held_by(broker).links.items()}
        self._monkeypatch = monkeypatch
        for link in self._links.values():
            monkeypatch.setattr(link, "take", partial(self._hold, link))

    def _hold(self, link: OverlayLink, body: bytes) -> None:
        self._held.append((link, body))

    async def step(self) -> None:
        """Deliver the messages in flight; messages sent in response wait for the next step."""
        await reached(self._settled, "rest")
        for broker in self._brokers:
            await broker.idle()
        await reached(self._settled, "rest")
        held, self._held = self._held, []
        for link, body in held:
            OverlayLink.take(link, body)

    def end(self) -> None:
        """Deliver all messages, and hold none back any more."""
        held, self._held = self._held, []
        for link in self._links.values():
            self._monkeypatch.setattr(link, "take", partial(OverlayLink.take, link))
        for link, body in held:
            link.take(body)

    def _settled(self) -> bool:
        """Return whether all sent messages have arrived or are held back, and no broker is busy."""
        waiting = dict.fromkeys(self._links, 0)
        for link, body in self._held:
            waiting[link.own, link.peer] += len(body)
        on_the_way = any(
            link.sent_bytes != self._links[peer, own].received_bytes + waiting[peer, own]
            for (own, peer), link in self._links.items()
        )
        busy = any(held_by(broker).busy for broker in self._brokers)
        return not on_the_way and not busy and not any(link._pieces for link in self._links.values())
