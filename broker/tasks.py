"""Start asyncio tasks so that each has an owner, which is notified of its failure.

`python -m tools.tasks`, a part of `make lint`, refuses to start tasks anywhere else, except in task groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from broker.event_log import get_logger

_log = get_logger()
_T = TypeVar("_T")


class Tasks:
    """Run the tasks of one part of the broker. Invariant: each error of a task started by `start` reaches `failed`."""

    def __init__(self, failed: Callable[[BaseException], None], ended: Callable[[], None] = lambda: None) -> None:
        """For tasks started by `start`: call `failed` with an error, and `ended` after each task, cancelled or not."""
        self._failed = failed
        self._on_end = ended
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def logged(cls, event: str) -> Tasks:
        """Return an owner that logs each error as this event, for work that the broker can do without."""
        return cls(lambda error: _log.error(event, exc_info=error))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work in a task of its own, and return the task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of work, or raise its error. If the caller is cancelled, work still runs to its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # its error refers to this frame: a reference cycle

    @property
    def busy(self) -> bool:
        """Whether a task runs."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Cancel the tasks without waiting for their end."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Cancel the tasks and wait until all have ended."""
        self.cancel()
        await self.ended()

    async def ended(self) -> None:
        """Wait until all tasks have ended. If the caller is cancelled, so are the tasks."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
        self._on_end()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have been cancelled; asyncio warns of errors that are never retrieved


async def uncancelled(work: Awaitable[_T], cancelled: Callable[[], None] = lambda: None) -> _T:
    """Return the result of work. If the caller is cancelled, call `cancelled` and wait until the work has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        cancelled()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn
        raise


async def called_back(begin: Callable[[Callable[[_T], None]], object]) -> _T:
    """Call `begin` with a callback, and return the value passed to it. After a cancellation the callback is ignored."""
    answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    begin(lambda value: None if answer.done() else answer.set_result(value))
    return await answer


class WakeUp:
    """Wake one task. Several wake-ups before the task waits again count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        """Whether the task has been woken since its last `wait`."""
        return self._event.is_set()

    def set(self) -> None:
        """Wake the task."""
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for a wake-up or the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


async def first_ended(*works: Awaitable[Any]) -> None:
    """Run all works until one has ended; then cancel the rest and wait for them. Raises: the error of the first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
