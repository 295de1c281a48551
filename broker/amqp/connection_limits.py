"""The limits of a connection, which the broker proposes or enforces."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConnectionLimits"]


@dataclass(frozen=True, slots=True, eq=False)  # one object for many connections: hashed by its identity
class ConnectionLimits:
    """The limits of a connection.

    Zero `channel_max` means the maximum of the protocol, 65535; zero `consumers_max`, which is per channel, no limit.
    """

    frame_max_bytes: int = 131072
    frame_min_bytes: int = 4096
    initial_frame_max_bytes: int = 8192
    channel_max: int = 2047
    heartbeat_s: int = 60
    max_message_size_bytes: int = 134217728
    tx_max_bytes: int = 67108864
    unsent_max_bytes: int = 1 << 19
    consumers_max: int = 0
    table_depth_max: int = 16
    table_entries_max: int = 4096

    def __post_init__(self) -> None:
        """Raise ValueError when no client could keep to these limits."""
        if not 0 < self.frame_min_bytes <= self.frame_max_bytes:
            raise ValueError("frame_max_bytes must be at least frame_min_bytes, and both above 0")
        if not 0 <= self.channel_max <= 65535 or not 0 <= self.heartbeat_s <= 65535:
            raise ValueError("channel_max and heartbeat_s must be within 0 and 65535")
