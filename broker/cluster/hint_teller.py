"""The teller of hints: tells the other nodes what is free and what is wanted, one statement at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.cluster.errors import Fenced, Unreachable
from broker.cluster.hint import FREE, WANTED, Hint

__all__ = ["HintDatabase", "HintTeller"]


class HintDatabase(Protocol):
    """The database as the teller sees it."""

    async def notify(self, hint: Hint) -> None:
        """Tell the other nodes something. Raises: Unreachable; Fenced."""


class HintTeller:
    """Tells hints; those that come while one is being told are joined.

    A hint is sent when the commit that it is about is done, on another connection: NOTIFY takes a lock that would
    let all nodes commit one after the other.
    """

    def __init__(
        self, database: HintDatabase, loop: asyncio.AbstractEventLoop, failed: Callable[[Exception], None]
    ) -> None:
        self._database = database
        self._loop = loop
        self._failed = failed
        self._free: dict[int, int] = {}  # by stream: the lowest number of a slot with free messages
        self._wanted: dict[int, None] = {}
        self._task: asyncio.Task[None] | None = None

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
        """Tell nothing that was to be told."""
        self._free.clear()
        self._wanted.clear()

    def close(self) -> None:
        """Stop."""
        self.forget()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._free or self._wanted:
                if self._free:
                    free, self._free = self._free, {}
                    await self._database.notify(Hint(FREE, min(free.values()), sorted(free)))
                else:
                    wanted, self._wanted = self._wanted, {}
                    await self._database.notify(Hint(WANTED, 0, sorted(wanted)))
        except (Unreachable, Fenced):
            pass  # a lost hint costs a second
        except Exception as error:  # noqa: BLE001 - a defect
            self._failed(error)
        finally:
            self._task = None
