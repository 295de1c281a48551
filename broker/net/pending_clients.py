"""Limits on clients: the descriptors that they may use, and the clients that have not logged in, by origin.

Some descriptors are reserved for the store, because the broker ends when it cannot open a file.
"""

from __future__ import annotations

import resource
import sys
from typing import Final, Generic, TypeVar

T = TypeVar("T")
DESCRIPTORS_WANTED: Final = 1 << 17  # over ten times the default of connections_max
RESERVED_MIN: Final = 64
RESERVED_MAX: Final = 1024


def descriptors_max() -> int:
    """Return the limit on open descriptors of the process."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def descriptors_for_clients() -> int:
    """Return the exclusive upper bound of clients' descriptors: the process's limit less the store's reserve."""
    soft = descriptors_max()
    if soft == sys.maxsize:
        return soft
    return soft - min(soft // 2, max(RESERVED_MIN, min(RESERVED_MAX, soft // 4)))


class PendingClients(Generic[T]):
    """Pending clients by origin, oldest first. Cost: O(1), but `take` skips the dict slots of removed clients."""

    __slots__ = ("_by_size", "_largest", "_origin_of", "_origins")

    def __init__(self) -> None:
        self._origin_of: dict[T, str] = {}
        self._origins: dict[str, dict[T, None]] = {}
        self._by_size: dict[int, dict[str, None]] = {}  # origins by the number of their members
        self._largest = 0  # the number of members of the largest origin

    def __len__(self) -> int:
        return len(self._origin_of)

    def add(self, member: T, origin: str) -> None:
        """Add a member, as the newest one."""
        members = self._origins.setdefault(origin, {})
        self._resize(origin, len(members), len(members) + 1)
        members[member] = None
        self._origin_of[member] = origin
        self._largest = max(self._largest, len(members))

    def remove(self, member: T) -> None:
        """Remove a member; do nothing if it is not one."""
        origin = self._origin_of.pop(member, None)
        if origin is None:
            return
        members = self._origins[origin]
        self._resize(origin, len(members), len(members) - 1)
        del members[member]
        if not members:
            del self._origins[origin]
        if self._largest not in self._by_size:
            self._largest -= 1

    def take(self) -> T | None:
        """Remove and return the oldest member of the origin with the most members, or None if there are none."""
        if not self._origin_of:
            return None
        origin = next(iter(self._by_size[self._largest]))
        member = next(iter(self._origins[origin]))
        self.remove(member)
        return member

    def _resize(self, origin: str, before: int, after: int) -> None:
        if before:
            origins = self._by_size[before]
            del origins[origin]
            if not origins:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[origin] = None
