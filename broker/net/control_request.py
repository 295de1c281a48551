"""One request at the control socket: what was asked, its arguments checked, and a way to say how far it has come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

__all__ = ["ControlRefused", "Request", "Verb"]

MISSING: Final = object()
LARGEST: Final = 1 << 53  # beyond it JSON's numbers are no integers for everybody


class ControlRefused(Exception):
    """A verb cannot be carried out; the text is the answer."""


def _nobody(_progress: Mapping[str, Any]) -> None:
    """Hears of progress when nobody asked."""


async def _to_nobody(_progress: Mapping[str, Any]) -> None:
    """Tells what nobody asked for."""


class Request:
    """Holds the arguments of one request. Raises: ControlRefused, naming the argument, from each reader.

    Shapes: `tell` takes what JSON can say, and the client reads it before the answer. `say` does the same for who says
        much: it returns when there is room for more, and the verb is cancelled when the client has hung up.
    """

    __slots__ = ("_fields", "say", "tell")

    def __init__(
        self,
        fields: Mapping[str, Any],
        tell: Callable[[Mapping[str, Any]], None] = _nobody,
        say: Callable[[Mapping[str, Any]], Awaitable[None]] = _to_nobody,
    ) -> None:
        self._fields = fields
        self.tell = tell
        self.say = say

    def has(self, name: str) -> bool:
        """Tells whether an argument was given."""
        return self._fields.get(name) is not None

    def text(self, name: str, default: Any = MISSING) -> str:
        """Returns a string, or the default when it was left out."""
        value = self._fields.get(name)
        if value is None and default is not MISSING:
            return str(default)
        if not isinstance(value, str):
            raise ControlRefused(f"'{name}' should be a string")
        return value

    def optional(self, name: str) -> str | None:
        """Returns a string, or None when it was left out."""
        return None if self._fields.get(name) is None else self.text(name)

    def integer(self, name: str, default: int, low: int = 0, high: int = LARGEST) -> int:
        """Returns an integer of a range."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ControlRefused(f"'{name}' should be an integer from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Returns a boolean that is false when left out."""
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise ControlRefused(f"'{name}' should be true or false")
        return value

    def texts(self, name: str) -> list[str]:
        """Returns a list of strings that is empty when left out."""
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ControlRefused(f"'{name}' should be a list of strings")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Returns a JSON object."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise ControlRefused(f"'{name}' should be a JSON object")
        return value


Verb = Callable[[Request], Any]
"""Carries out one request: returns what JSON can say, or an awaitable of it; raises ControlRefused."""
