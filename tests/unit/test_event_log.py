"""The broker logs where the process configures it, or where an embedding program redirects it."""

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import CapturingLogger, capture_logs

from broker.event_log import get_logger, redirect

_log = get_logger()  # like a module of the broker: created before logging is configured


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    redirect()


def test_events_go_to_structlog_as_the_process_has_it() -> None:
    """Logging that is configured after the import takes effect."""
    with capture_logs() as events:
        _log.warning("thing.happened", slot=1)
        _log.bind(conn="c").info("thing.followed")
    assert events == [
        {"event": "thing.happened", "slot": 1, "log_level": "warning"},
        {"event": "thing.followed", "conn": "c", "log_level": "info"},
    ]


def test_redirected_events_go_there_alone_until_they_are_not() -> None:
    """Redirection affects loggers that modules took earlier, and its end does too."""
    there = CapturingLogger()
    with capture_logs() as events:
        redirect(structlog.wrap_logger(there, processors=[], wrapper_class=structlog.BoundLogger))
        _log.warning("thing.happened")
        assert (len(there.calls), events) == (1, [])
        redirect()
        _log.warning("thing.happened")
        assert (len(there.calls), len(events)) == (1, 1)
