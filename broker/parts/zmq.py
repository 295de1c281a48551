"""The ØMQ bridges, if the settings name any. Otherwise ØMQ's modules are not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.amqp.errors import BrokerError
from broker.parts.clients import Clients
from broker.parts.data import Data
from broker.parts.overlay import Overlay
from broker.parts.part import Part, Shared

if TYPE_CHECKING:
    from broker.zeromq.bridges import Bridges


class Zmq(Part):
    """The ØMQ bridges of this process; none without `[[zmq.publish]]` and `[[zmq.subscribe]]`."""

    def __init__(self, shared: Shared, data: Data, clients: Clients, overlay: Overlay) -> None:
        self._shared = shared
        self._data = data
        self._clients = clients
        self._overlay = overlay
        self.bridges: Bridges | None = None

    async def open(self) -> None:
        """Open the endpoints. Raises: BrokerError."""
        settings = self._shared.settings
        if not settings.zmq.is_on:
            return
        try:
            from broker.zeromq.bridges import Bridges  # noqa: PLC0415 - other brokers need no pyzmq
        except ImportError as error:
            raise BrokerError(f"zmq.publish and zmq.subscribe need slotmq[zmq]: {error}") from error
        attach = self._clients.listener.attach
        self.bridges = Bridges(settings, self._data.vhosts, attach, self._overlay.follow_interest)

    async def start(self) -> None:
        """Connect the bridges to the listener, which already serves clients."""
        if self.bridges is not None:
            self.bridges.start()

    async def stop(self, timeout_s: float) -> None:
        """Forward the received messages, and stop the bridges."""
        bridges, self.bridges = self.bridges, None
        if bridges is not None:
            await bridges.stop(timeout_s)

    async def close(self) -> None:
        """Close the endpoints at once, if `stop` was not called."""
        bridges, self.bridges = self.bridges, None
        if bridges is not None:
            bridges.abort()

    def tick(self) -> None:
        """Log lost messages; called once a second."""
        if self.bridges is not None:
            self.bridges.tick()

    def facts(self) -> list[dict[str, Any]]:
        """Return a row for each bridge, as JSON."""
        return [] if self.bridges is None else self.bridges.facts()
