"""Hints that nodes send each other by NOTIFY.

A lost hint causes a delay of at most a second, because every node also checks regularly.

Format of a payload: kind, number, then the levels, separated by spaces. PostgreSQL limits it to less than 8,000 bytes,
so one hint may need several payloads.
"""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from broker.tasks import Tasks

FREE: Final = "free"  # these levels have free messages, in slots numbered `number` or higher
WANTED: Final = "wanted"  # a node found nothing free in these levels, and has room
APPLIED: Final = "applied"  # the member with the epoch in `levels` has applied version `number` of the topology
TOPOLOGY: Final = "topology"  # version `number` was appended
DEFINITIONS: Final = "definitions"  # users, vhosts, rights, policies or parameters have changed
JOINED: Final = "joined"  # a node has joined as epoch `number`
PRODUCERS: Final = "producers"  # a node needs the numbered producer whose vhost and name have the checksum `number`
CLIENTS: Final = "clients"  # a node needs MQTT client ids, which `claim_clients` has marked as wanted
LOOK: Final = "look"  # never sent: this node has reconnected, so hints may have been lost, or another node is gone
PAYLOAD_BYTES_MAX: Final = 7999


class Hint(NamedTuple):
    """One hint of another node."""

    kind: str
    number: int = 0
    levels: Sequence[int] = ()

    def payloads(self) -> list[str]:
        """Return the payloads that carry this hint, at least one."""
        head = f"{self.kind} {self.number}"
        levels = " ".join(map(str, self.levels))
        pieces = textwrap.wrap(levels, PAYLOAD_BYTES_MAX - len(head) - 1, break_on_hyphens=False)
        return [f"{head} {piece}" for piece in pieces] or [head]

    @classmethod
    def from_payload(cls, payload: str) -> Hint | None:
        """Return the hint of a payload, or None if its numbers cannot be read."""
        kind, *numbers = payload.split(" ")
        try:
            number, *levels = (int(text) for text in numbers)
        except ValueError:
            return None
        return cls(kind, number, levels)


class HintTeller:
    """Tell the other nodes which messages are free or wanted. What is announced while a hint is sent is merged into the
    next hints. A hint is sent after the commit that it announces, on another connection, because NOTIFY takes a lock
    that would serialize the commits of all nodes.
    """

    def __init__(self, notify: Callable[[Hint], Awaitable[None]], tasks: Tasks) -> None:
        self._notify = notify
        self._tasks = tasks
        self._free: dict[int, int] = {}  # by level: the lowest number of a slot with free messages
        self._wanted: dict[int, None] = {}
        self._is_telling = False

    def free(self, number: int, levels: Sequence[int]) -> None:
        """Announce that the slots with this number have free messages in these levels."""
        for level in levels:
            lowest = self._free.get(level)
            if lowest is None or number < lowest:
                self._free[level] = number
        self._start()

    def wanted(self, level: int) -> None:
        """Announce that this node needs messages of a level and found none free."""
        self._wanted[level] = None
        self._start()

    def forget(self) -> None:
        """Drop the hints that have not been sent yet."""
        self._free.clear()
        self._wanted.clear()

    def _start(self) -> None:
        if not self._is_telling:
            self._is_telling = True
            self._tasks.start(self._tell())

    async def _tell(self) -> None:
        try:
            while self._free or self._wanted:
                if self._free:
                    free, self._free = self._free, {}
                    await self._notify(Hint(FREE, min(free.values()), sorted(free)))
                else:
                    wanted, self._wanted = self._wanted, {}
                    await self._notify(Hint(WANTED, 0, sorted(wanted)))
        finally:
            self._is_telling = False
