"""Progress of a stop: what the broker waits for, reported to those who asked it to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Stopping"]

Tell = Callable[[Mapping[str, Any]], None]


class Stopping:
    """Passes on what is waited for. Shapes: `{"waits_for": "clients", "count": 3}`; at the end `{"stopped": True}`."""

    def __init__(self) -> None:
        self._listeners: list[Tell] = []
        self._last: Mapping[str, Any] | None = None

    def listen(self, tell: Tell) -> None:
        """Report what the stop waits for, now and at each change."""
        self._listeners.append(tell)
        if self._last is not None:
            tell(self._last)

    def wait_for(self, what: str, **facts: Any) -> None:
        """Report what the stop waits for."""
        self._say({"waits_for": what, **facts})

    def finish(self) -> None:
        """Report that everything is written and that the stop waits for nothing."""
        self._say({"stopped": True})

    def _say(self, step: Mapping[str, Any]) -> None:
        if step != self._last:
            self._last = step
            for tell in self._listeners:
                tell(step)
