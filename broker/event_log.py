"""The broker's logger: events go to structlog as the process has configured it, or where `redirect` says.

A program that embeds a broker has a structlog configuration of its own, which the broker must not change.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any


class Structlog:
    """structlog's own logger, which is imported with its first event: a daemon redirects its events before that."""

    __slots__ = ()

    def __getattr__(self, method: str) -> Any:
        """Return a method of the logger."""
        import structlog  # noqa: PLC0415 - as above

        return getattr(structlog.get_logger(), method)


class EventLog:
    """The logger of every module, wherever its events go."""

    __slots__ = ("to",)

    def __init__(self) -> None:
        self.to: Any = Structlog()

    def redirect(self, to: Any) -> None:
        """Send events to another logger of structlog's kind, or to structlog's own again."""
        self.to = Structlog() if to is None else to

    # Of the current logger. A property costs a third of __getattr__(), which Python tries last.
    debug = property(attrgetter("to.debug"))
    info = property(attrgetter("to.info"))
    warning = property(attrgetter("to.warning"))
    error = property(attrgetter("to.error"))

    def __getattr__(self, method: str) -> Any:
        """Return `bind` and so on of the current logger."""
        return getattr(self.to, method)


_log = EventLog()


def get_logger() -> Any:
    """Return the broker's logger."""
    return _log


def redirect(to: Any = None) -> None:
    """Send events to another logger of structlog's kind, or to structlog's own again."""
    _log.redirect(to)
