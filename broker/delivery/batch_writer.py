"""The batch writer: writes the batches of one log in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.store.message_log import Batch

__all__ = ["BatchWriter"]


class BatchWriter:
    """Calls `write` in a thread, one batch at a time, and `ended` on the loop with the error or None.

    Cost: one lock and one wake-up of the loop per batch. A pool of threads would add a work item and a future.
    """

    def __init__(
        self,
        write: Callable[[Batch], None],
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._write = write
        self._loop = loop
        self._ended = ended
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._running: Thread | None = None  # an idle vhost has none

    def start(self, batch: Batch) -> None:
        """Start to write a batch. Invariant: the one before it has ended."""
        if self._running is None:
            # A daemon: a process that ends because its disk hangs must not wait for it.
            self._running = Thread(target=self._run, name="committer", daemon=True)
            self._running.start()
        self._batches.put(batch)

    def close(self) -> None:
        """End the thread behind the batch that it writes."""
        if self._running is not None:
            self._batches.put(None)
            self._running.join()
            self._running = None

    def attempt(self, batch: Batch) -> BaseException | None:
        """Write a batch in the calling thread, and return the error."""
        try:
            self._write(batch)
        except BaseException as error:  # noqa: BLE001 - the committer ends the broker
            return error
        return None

    def write(self, batch: Batch) -> None:
        """Write a batch in the calling thread, and tell the loop how it ended."""
        error = self.attempt(batch)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ended, error)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self.write(batch)
