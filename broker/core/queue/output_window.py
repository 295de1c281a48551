"""The output window of a connection: it stops deliveries to a client that does not read fast enough."""

from __future__ import annotations

from typing import Final

from broker.amqp.connection import Connection

HIGH_WATER_BYTES: Final = 256 << 10


class OutputWindow:
    """Stop deliveries, but never answers, while too much of a connection's output is unsent. A connection has one
    window; a consumer that was shut has a paused window of its own until it is opened again.

    Units: `high_water_bytes` is the unsent output at which deliveries stop. `last_served` is the number of the channel
        whose consumers were served last, or 0.
    Invariant: `starved` is set when a delivery was held back, and cleared when the consumers are woken.
    """

    __slots__ = ("_connection", "high_water_bytes", "last_served", "starved", "writable")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.high_water_bytes = HIGH_WATER_BYTES
        self.writable = True
        self.starved = False
        self.last_served = 0

    def set_high_water(self, high_water_bytes: int) -> None:
        self.high_water_bytes = high_water_bytes

    def pause(self) -> None:
        """Stop deliveries until `resume`."""
        self.writable = False

    def resume(self) -> None:
        """Allow deliveries again."""
        self.writable = True

    def take_starved(self) -> bool:
        """Return whether deliveries that were held back may be sent now, and clear ``starved`` if so."""
        if self.starved and self.writable:
            self.starved = False
            return True
        return False

    def has_room(self) -> bool:
        """Return whether a delivery may be added now; if not, set ``starved``."""
        if self.writable and self._connection.out_bytes < self.high_water_bytes:
            return True
        self.starved = True
        return False
