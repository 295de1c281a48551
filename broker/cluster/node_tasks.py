"""The tasks of one part of a node, which end with the node's epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from broker.cluster.errors import Fenced

__all__ = ["NodeTasks"]


class NodeTasks:
    """Runs tasks until they are done, or stopped.

    A task may end with Fenced: the database tells the node that its epoch has ended. Any other error is a defect, and
    ends the broker.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """`fail` ends the broker."""
        self._fail = fail
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work in a task of its own, and return the task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel the tasks, and wait for none."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Cancel the tasks, and return when all have ended."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Fenced):
            self._fail(error)
