"""The overlay brokers of this process, if the settings name any. Otherwise the overlay's modules are not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.delivery.engine import Engine
from broker.parts.data import Data
from broker.parts.part import Part, Shared

if TYPE_CHECKING:
    from broker.overlay_node.held_brokers import HeldBrokers
    from broker.overlay_node.links import Links


class Overlay(Part):
    """The overlay brokers of this process, and the links to their neighbours; both are None without an overlay."""

    def __init__(self, shared: Shared, data: Data) -> None:
        self._shared = shared
        self._data = data
        self.brokers: HeldBrokers | None = None
        self._links: Links | None = None

    async def open(self) -> None:
        """Open the streams and let neighbours connect, if there is an overlay.

        Raises: NewerFormat; CorruptFile; StoreFailed.
        """
        shared, vhosts = self._shared, self._data.vhosts
        if not shared.settings.overlay.is_on:
            return
        from broker.overlay_node.held_brokers import HeldBrokers  # noqa: PLC0415 - a start without it is shorter
        from broker.overlay_node.links import Links  # noqa: PLC0415 - as above

        self.brokers = HeldBrokers(shared.settings, vhosts, shared.files, shared.path, shared.fail)
        self._links = Links(shared.settings, self.brokers)
        await self.brokers.start()
        for engine in vhosts.engines.values():
            self._accept(engine)
        vhosts.on_open(self._accept)

    async def start(self) -> None:
        if self._links is not None:
            self._links.start()

    async def stop(self, timeout_s: float) -> None:
        """Close the links, then stop the overlay brokers."""
        if self._links is not None and self.brokers is not None:
            await self._links.stop()
            await self.brokers.stop()

    def tick(self) -> None:
        """Advance the time of the overlay brokers; called every twenty milliseconds."""
        if self.brokers is not None:
            self.brokers.tick()

    @property
    def is_on(self) -> bool:
        """Whether this process takes part in an overlay."""
        return self.brokers is not None

    def facts(self) -> list[dict[str, Any]]:
        """Return a row for each overlay broker of this process, as JSON."""
        from broker.overlay_node.facts import overlay_facts  # noqa: PLC0415 - as above

        assert self.brokers is not None
        return overlay_facts(self.brokers)

    def flows(self) -> list[dict[str, Any]]:
        """Return the links of each overlay broker of this process, and the streams of its leaf, as JSON."""
        from broker.overlay_node.facts import overlay_flows  # noqa: PLC0415 - as above

        assert self.brokers is not None
        return overlay_flows(self.brokers)

    def explain(self, vhost: str, exchange: str | None, key: str) -> list[dict[str, Any]]:
        """Return the routes of a message with their reasons, as JSON; if `exchange` is None, through each exchange."""
        from broker.overlay_node.facts import explain  # noqa: PLC0415 - as above

        assert self.brokers is not None
        return explain(self.brokers, vhost, exchange, key)

    def forget(self, leaf: str) -> None:
        """Retain nothing more for a leaf that will not return. Raises: what HeldBrokers.forget raises."""
        assert self.brokers is not None
        self.brokers.forget(leaf)

    def follow_interest(self, vhost: str, exchange: str, notify: Callable[[str, bool], None]) -> None:
        """Call `notify` with each pattern of an exchange and whether a binding, here or at another broker, asks for it:
        first with all wanted patterns, then at each change. An exchange outside the overlay has no patterns.
        """
        driver = None if self.brokers is None else self.brokers.driver
        held = None if driver is None else driver.vhosts.get(vhost)
        if held is not None:
            feed = held.overlay.feed
            feed.follow(lambda name, pattern, wanted: notify(pattern, wanted) if name == exchange else None)

    @property
    def busy(self) -> bool:
        """Whether the overlay has work that does not depend on other brokers."""
        return self.brokers is not None and self.brokers.busy

    def _accept(self, engine: Engine) -> None:
        assert self._links is not None
        engine.vhost.accept_links(self._links.accept)
