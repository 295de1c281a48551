"""An event loop that makes the same calls in the same order for the same input."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class SteadyLoop(asyncio.SelectorEventLoop):
    """Runs executor work inline and stops the clock, so that no thread or timer changes the calls of a path."""

    def time(self) -> float:
        """Return a constant: no scheduled timer ever runs."""
        return 0.0

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Call a function now, and return a completed future."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - a future carries any exception of its work
            future.set_exception(error)
        return future
