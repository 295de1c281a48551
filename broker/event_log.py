"""The broker's logger: events go to structlog as the process has configured it, or to the logger of `redirect`.

A program that embeds a broker has a structlog configuration of its own, which the broker must not change.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any


class Structlog:
    """Forward events to structlog's own logger, and import structlog only when the first event is logged."""

    __slots__ = ()

    def __getattr__(self, method: str) -> Any:
        import structlog  # noqa: PLC0415 - as above

        return getattr(structlog.get_logger(), method)


class EventLog:
    """The logger that all modules share; its target can be replaced."""

    __slots__ = ("target",)

    def __init__(self) -> None:
        self.target: Any = Structlog()

    def redirect(self, target: Any = None) -> None:
        """Send events to another logger with structlog's methods, or back to structlog's own."""
        self.target = Structlog() if target is None else target

    # The methods of the target. A property costs a third of __getattr__(), which Python tries last.
    debug = property(attrgetter("target.debug"))
    info = property(attrgetter("target.info"))
    warning = property(attrgetter("target.warning"))
    error = property(attrgetter("target.error"))

    def __getattr__(self, method: str) -> Any:
        """Return another method of the target, such as `bind`."""
        return getattr(self.target, method)


_log = EventLog()


def get_logger() -> Any:
    """Return the broker's logger."""
    return _log


redirect = _log.redirect
