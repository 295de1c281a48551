"""Redirect the events of a broker under test to the standard library's logger `slotmq`.

So a test run prints no events, and pytest shows and captures them like any other log. The structlog configuration of
the program under test stays unchanged.
"""

from __future__ import annotations

import logging
from threading import Lock
from typing import Final

import structlog
from structlog.typing import EventDict, WrappedLogger

from broker.event_log import redirect
from broker.telemetry import redact

NAME: Final = "slotmq"

_lock = Lock()
_brokers = 0


def redirect_events() -> None:
    """Redirect events while any broker under test runs; each caller calls `restore_events` at the end."""
    global _brokers  # noqa: PLW0603 - counts the brokers in the process
    with _lock:
        _brokers += 1
        if _brokers == 1:
            redirect(
                structlog.wrap_logger(
                    logging.getLogger(NAME),
                    processors=[
                        structlog.stdlib.filter_by_level,
                        structlog.processors.format_exc_info,
                        one_line,
                    ],
                    wrapper_class=structlog.stdlib.BoundLogger,
                    cache_logger_on_first_use=False,
                )
            )


def restore_events() -> None:
    """Stop redirecting the events if this was the last broker under test."""
    global _brokers  # noqa: PLW0603 - counts the brokers in the process
    with _lock:
        _brokers -= 1
        if not _brokers:
            redirect()


def one_line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Return an event without secrets as one line, followed by its traceback, if any."""
    event = redact(event)
    name = str(event.pop("event"))
    trace = event.pop("exception", None)
    line = " ".join([name, *(f"{key}={value!r}" for key, value in event.items())])
    return f"{line}\n{trace}" if trace else line
