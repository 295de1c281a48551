"""One request at the control socket: its checked arguments, and a way to report progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.core.moving.course import CheckPublish, let_all

__all__ = ["Asker", "ControlRefused", "Request", "Verb"]

MISSING: Final = object()
ROWS_AT_ONCE: Final = 500  # rows of a long list that are made or encoded between two turns of the loop
LARGEST: Final = 1 << 53  # not every JSON reader has larger integers


class ControlRefused(Exception):
    """A verb cannot be carried out; the text is the answer."""


class Asker:
    """The client as a long-running verb sees it. This one is the broker itself, which receives and sends nothing."""

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Send progress before the answer."""

    async def say(self, progress: Mapping[str, Any]) -> None:
        """Send progress, and wait until there is room for more; the verb is cancelled when the client hangs up."""

    def enough(self) -> bool:
        """Return whether the client has ended its side of the conversation, so that the verb should stop and answer."""
        return False

    async def accepted(self) -> bool:
        """Wait for a line of the client, which accepts what it was sent; return whether one arrived."""
        return False


class Request:
    """Holds the arguments of one request. Raises: ControlRefused, naming the argument, from each reader."""

    __slots__ = ("_fields", "asker", "check_publish")

    def __init__(
        self, fields: Mapping[str, Any], asker: Asker | None = None, check_publish: CheckPublish | None = None
    ) -> None:
        """`check_publish` raises ChannelError for what the client may not publish; an operator may publish all."""
        self._fields = fields
        self.asker = asker or Asker()
        self.check_publish = check_publish or let_all

    def has(self, name: str) -> bool:
        """Return whether an argument was given."""
        return self._fields.get(name) is not None

    def value(self, name: str, default: Any = None) -> Any:
        """Return an argument as it was sent, whatever it is, or the default when it was left out."""
        return self._fields.get(name, default)

    def text(self, name: str, default: Any = MISSING) -> str:
        """Return a string, or the default when it was left out."""
        value = self._fields.get(name)
        if value is None and default is not MISSING:
            return str(default)
        if not isinstance(value, str):
            raise ControlRefused(f"'{name}' should be a string")
        return value

    def optional(self, name: str) -> str | None:
        """Return a string, or None when it was left out."""
        return None if self._fields.get(name) is None else self.text(name)

    def integer(self, name: str, default: int, low: int = 0, high: int = LARGEST) -> int:
        """Return an integer of a range."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ControlRefused(f"'{name}' should be an integer from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean that is false when left out."""
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise ControlRefused(f"'{name}' should be true or false")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings that is empty when left out."""
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ControlRefused(f"'{name}' should be a list of strings")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Return a JSON object."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise ControlRefused(f"'{name}' should be a JSON object")
        return value


Verb = Callable[[Request], Any]
"""Carries out one request: returns a JSON value or an awaitable of one; raises ControlRefused."""
