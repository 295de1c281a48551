"""How a broker meets ØMQ programs, if its settings say so. Without them nothing of ØMQ is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.amqp.errors import BrokerError

if TYPE_CHECKING:
    from broker.net.listener import Listener
    from broker.overlay_node.part import OverlayPart
    from broker.settings import Settings
    from broker.vhosts.vhosts import Vhosts
    from broker.zeromq.bridges import Bridges

__all__ = ["ZmqPart"]


class ZmqPart:
    """The ØMQ bridges of this process, if there are any."""

    def __init__(self) -> None:
        self.bridges: Bridges | None = None

    def open(self, settings: Settings, vhosts: Vhosts, listener: Listener, overlay: OverlayPart) -> None:
        """Open the endpoints. Raises: BrokerError."""
        if not settings.zmq.is_on:
            return
        try:
            from broker.zeromq.bridges import Bridges  # noqa: PLC0415 - other brokers need no pyzmq
        except ImportError as error:
            raise BrokerError(f"zmq.publish and zmq.subscribe need slotmq[zmq]: {error}") from error
        self.bridges = Bridges(settings, vhosts, listener.attach, overlay.follow_interest)

    def start(self) -> None:
        """Connect the bridges; the listener serves clients by now."""
        if self.bridges is not None:
            self.bridges.start()

    async def stop(self, timeout_s: float) -> None:
        """Pass on what has come, and end; later calls do nothing."""
        bridges, self.bridges = self.bridges, None
        if bridges is not None:
            await bridges.stop(timeout_s)

    def abort(self) -> None:
        """Close the endpoints at once."""
        bridges, self.bridges = self.bridges, None
        if bridges is not None:
            bridges.abort()

    def tick(self) -> None:
        """Log what was lost; called once a second."""
        if self.bridges is not None:
            self.bridges.tick()

    def facts(self) -> list[dict[str, Any]]:
        """Return a row for each bridge, as JSON."""
        return [] if self.bridges is None else self.bridges.facts()
