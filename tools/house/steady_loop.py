"""An event loop in which the same input makes the same calls in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple, Unpack

__all__ = ["SteadyLoop"]

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class SteadyLoop(asyncio.SelectorEventLoop):
    """Runs executor work inline and stops the clock, so that no thread and no timer changes what a path calls."""

    def time(self) -> float:
        """Return the same moment always: nothing that was scheduled for later ever runs."""
        return 0.0

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Call a function now, and return a future that is done."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - a future carries whatever its work raised
            future.set_exception(error)
        return future
