"""The reasons for which a connection is not read."""

from __future__ import annotations

from typing import Final

__all__ = ["Stop"]


class Stop:
    """Why a connection is not read: bits of an integer. An enum would compute with them in Python, at each write."""

    TURN: Final = 1
    HELD: Final = 2
    OUTPUT: Final = 4
    ALARM: Final = 8
    STORE: Final = 16
    STOPPING: Final = 32
