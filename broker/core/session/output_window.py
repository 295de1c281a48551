"""The outflow of a connection: whether its client reads fast enough for one more delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.amqp.connection import Connection
    from broker.core.session.basic import BasicSession

__all__ = ["OutputWindow"]

HIGH_WATER_BYTES: Final = 256 << 10


class OutputWindow:
    """Stops deliveries, which are optional, when too much of a connection's output is unsent; answers are never
    stopped.

    Units: ``high_water_bytes`` is what may wait in the connection; the socket holds about as much before ``writable``
        is cleared.
    Invariant: ``starved`` is set when a delivery was held back, and cleared by whoever wakes the consumers.
    """

    __slots__ = ("_connection", "high_water_bytes", "last_served", "starved", "writable")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.high_water_bytes = HIGH_WATER_BYTES
        self.writable = True
        self.starved = False
        self.last_served: BasicSession | None = None  # whose consumers filled it last

    def has_room(self) -> bool:
        """Return whether a delivery may be added now."""
        if self.writable and self._connection.out_bytes < self.high_water_bytes:
            return True
        self.starved = True
        return False
