"""The teller of hints: tell the other nodes what is free and what is wanted, one statement at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.cluster.errors import Unreachable
from broker.cluster.hint import FREE, WANTED, Hint
from broker.tasks import Tasks

__all__ = ["HintDatabase", "HintTeller"]


class HintDatabase(Protocol):
    """The database as the teller sees it."""

    async def notify(self, hint: Hint) -> None:
        """Tell the other nodes something. Raises: Unreachable; Fenced."""


class HintTeller:
    """Sends hints; hints that are noted while a statement runs are sent together by the next one.

    A hint is sent when the commit that it is about is done, on another connection: NOTIFY takes a lock that would
    let all nodes commit one after the other.
    """

    def __init__(self, database: HintDatabase, tasks: Tasks) -> None:
        self._database = database
        self._tasks = tasks
        self._free: dict[int, int] = {}  # by stream: the lowest number of a slot with free messages
        self._wanted: dict[int, None] = {}
        self._tells = False

    def free(self, number: int, streams: Sequence[int]) -> None:
        """Tell that a slot has free messages of streams."""
        for stream in streams:
            lowest = self._free.get(stream)
            if lowest is None or number < lowest:
                self._free[stream] = number
        self._start()

    def wanted(self, stream: int) -> None:
        """Tell that this node finds nothing free in a stream."""
        self._wanted[stream] = None
        self._start()

    def forget(self) -> None:
        """Drop the hints that were not sent yet."""
        self._free.clear()
        self._wanted.clear()

    def _start(self) -> None:
        if not self._tells:
            self._tells = True
            self._tasks.start(self._tell())

    async def _tell(self) -> None:
        try:
            while self._free or self._wanted:
                if self._free:
                    free, self._free = self._free, {}
                    await self._database.notify(Hint(FREE, min(free.values()), sorted(free)))
                else:
                    wanted, self._wanted = self._wanted, {}
                    await self._database.notify(Hint(WANTED, 0, sorted(wanted)))
        except Unreachable:
            pass  # a lost hint costs a second
        finally:
            self._tells = False
