"""The interface of a part of the broker, with its lifecycle, and the state that all parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.delivery.turn import Turn
from broker.settings import Settings
from broker.store.files import Files
from broker.vhosts.recovery_watch import RecoveryWatch

StepListener = Callable[[Mapping[str, Any]], None]


class Stopping:
    """Report to listeners what a stop waits for.

    Shapes: `{"waits_for": "clients", "count": 3}`; at the end `{"stopped": True}`.
    """

    def __init__(self) -> None:
        self._listeners: list[StepListener] = []
        self._last: Mapping[str, Any] | None = None

    def listen(self, listener: StepListener) -> None:
        """Call a listener with the current step, if the stop has begun, and with each later one."""
        self._listeners.append(listener)
        if self._last is not None:
            listener(self._last)

    def wait_for(self, what: str, **facts: Any) -> None:
        """Report the step that the stop waits for."""
        self._report({"waits_for": what, **facts})

    def finish(self) -> None:
        """Report that everything is written and that the stop no longer waits."""
        self._report({"stopped": True})

    def _report(self, step: Mapping[str, Any]) -> None:
        if step != self._last:
            self._last = step
            for listener in self._listeners:
                listener(step)


class Part:
    """A part of a broker. The broker opens and starts its parts in their order, and stops and closes them in reverse.

    Invariant: a part needs only earlier parts to open and start. If its `open` fails, its `close` is not called.
    """

    async def open(self) -> None:
        """Acquire the part's resources, and recover; no clients are answered yet, except HTTP probes."""

    async def start(self) -> None:
        """Start serving."""

    async def stop(self, timeout_s: float) -> None:
        """Finish accepted work; clients and readers have this long to end."""

    async def close(self) -> None:
        """Release everything at once, after `stop` or without one."""

    async def apply_settings(self, settings: Settings) -> None:
        """Apply changed settings, none of which needs a restart."""


@contextmanager
def named(part: Part) -> Iterator[None]:
    """Add a note with the part's name to an OSError, which does not say by itself what failed.

    Raises: OSError.
    """
    try:
        yield
    except OSError as error:
        error.add_note(f"the part {type(part).__name__.lower()} did not start")
        raise


@dataclass(slots=True)
class Shared:
    """The state shared by all parts of a broker. Units: `clock` returns seconds since 1970 and never goes back.
    Invariant: `settings` are those in force; `path` is absolute; `served` is set once all parts are started; `turn`
        exists once the data folder's clock has been resumed.
    """

    settings: Settings
    files: Files
    path: Path
    clock: Callable[[], float]
    fail: Callable[[BaseException], None]
    recovery: RecoveryWatch = field(default_factory=RecoveryWatch)
    stopping: Stopping = field(default_factory=Stopping)
    served: bool = False
    turn: Turn = field(init=False)

    def begin(self, loop: asyncio.AbstractEventLoop) -> Turn:
        """Create the turn of the loop, which uses the clock that the data folder has resumed."""
        self.turn = Turn(loop, self.clock, self.fail, self.settings.flow.read_budget_bytes)
        return self.turn

    def serve(self) -> None:
        """Record that all parts were started."""
        self.served = True

    def apply_settings(self, settings: Settings) -> None:
        self.settings = settings
