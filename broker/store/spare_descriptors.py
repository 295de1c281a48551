"""Spare descriptors: the store opens its next file with them when clients have taken all others.

A store that cannot open a file ends the broker, so clients could end it by opening connections until no descriptor is
left. Therefore a few descriptors are kept open, and closed when they are needed.
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
    """Unused descriptors, for any thread. Invariant: never more than `count` of them."""

    def __init__(self, count: int = COUNT) -> None:
        self._count = count
        self._lock = Lock()
        self._spares: list[int] = []

    def opening(self, opens: Callable[[], Opened]) -> Opened:
        """Return the result of a call that opens a file; when no descriptor is left, close a spare one and try again.

        Raises: OSError, also when no spare descriptor is left.
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
                    self._spares += os.pipe()  # it has no file; both ends count
                except OSError:
                    return
