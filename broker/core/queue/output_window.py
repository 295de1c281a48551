"""The output window of a connection: whether its client reads fast enough for one more delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.amqp.connection import Connection

__all__ = ["OutputWindow"]

HIGH_WATER_BYTES: Final = 256 << 10


class OutputWindow:
    """Stops deliveries, which are optional, when too much of a connection's output is unsent; answers are never
    stopped.

    Units: ``high_water_bytes`` is what may wait in the connection; the socket holds about as much before ``writable``
        is cleared.
    Invariant: ``starved`` is set when a delivery was held back, and cleared when the consumers are woken.
        ``last_served`` is the number of the channel whose consumers were served last, 0 for none. ``drains`` of the
        client are under way; with one of them, or while it is paused, the window is not writable.
    """

    __slots__ = ("_connection", "_paused", "drains", "high_water_bytes", "last_served", "starved", "writable")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.high_water_bytes = HIGH_WATER_BYTES
        self.writable = True
        self._paused = False
        self.drains = 0
        self.starved = False
        self.last_served = 0

    def set_high_water(self, high_water_bytes: int) -> None:
        """Set what may wait in the connection."""
        self.high_water_bytes = high_water_bytes

    def pause(self) -> None:
        """Stop deliveries: the socket takes no more, or the client is gone."""
        self._paused = True
        self.writable = False

    def resume(self) -> None:
        """Allow deliveries: the socket has sent enough."""
        self._paused = False
        self.writable = not self.drains

    def end(self) -> None:
        """Stop deliveries until `reopen`, which each call needs: the client is drained."""
        self.drains += 1
        self.writable = False

    def reopen(self) -> None:
        """Allow deliveries again, unless another drain is under way or the socket takes no more."""
        self.drains -= 1
        self.writable = not (self.drains or self._paused)

    def take_starved(self) -> bool:
        """Return whether a delivery was held back that may be sent now, once for all that were."""
        if self.starved and self.writable:
            self.starved = False
            return True
        return False

    def has_room(self) -> bool:
        """Return whether a delivery may be added now."""
        if self.writable and self._connection.out_bytes < self.high_water_bytes:
            return True
        self.starved = True
        return False
