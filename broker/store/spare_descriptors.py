"""Spare descriptors: what the store opens its next file with when clients have taken all the others.

A store that cannot open a file ends the broker, and whoever can connect could have it end: sockets are accepted until
there is no descriptor left. So a few are kept open on nothing and closed when they are needed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

__all__ = ["SpareDescriptors"]

Opened = TypeVar("Opened")

COUNT: Final = 16
NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE)


class SpareDescriptors:
    """Holds descriptors that nobody uses. Invariant: never more than `count` of them; any thread may ask."""

    def __init__(self, count: int = COUNT) -> None:
        self._count = count
        self._lock = Lock()
        self._spares: list[int] = []

    def opening(self, opens: Callable[[], Opened]) -> Opened:
        """Return what a call that opens something returns; where no descriptor is left for it, with one of these.

        Raises: OSError, also that no descriptor is left when there is no spare one either.
        """
        while True:
            try:
                opened = opens()
            except OSError as error:
                if error.errno not in NONE_LEFT or not self._give():
                    raise
            else:
                self._refill()
                return opened

    def _give(self) -> bool:
        with self._lock:
            if not self._spares:
                return False
            os.close(self._spares.pop())
            return True

    def _refill(self) -> None:
        with self._lock:
            while len(self._spares) < self._count:
                try:
                    self._spares += os.pipe()  # of no file, and both ends count
                except OSError:
                    return
