"""The broker's log goes where the process says, or where whoever runs a broker inside a program says."""

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import CapturingLogger, capture_logs

from broker.event_log import get_logger, redirect

_log = get_logger()  # as a module of the broker has it: made before anybody says where events go


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    redirect()


def test_events_go_to_structlog_as_the_process_has_it() -> None:
    """What is set up after the module was imported counts."""
    with capture_logs() as events:
        _log.warning("thing.happened", slot=1)
        _log.bind(conn="c").info("thing.followed")
    assert events == [
        {"event": "thing.happened", "slot": 1, "log_level": "warning"},
        {"event": "thing.followed", "conn": "c", "log_level": "info"},
    ]


def test_redirected_events_go_there_alone_until_they_are_not() -> None:
    """Modules that took their logger before are redirected too, and back."""
    there = CapturingLogger()
    with capture_logs() as events:
        redirect(structlog.wrap_logger(there, processors=[], wrapper_class=structlog.BoundLogger))
        _log.warning("thing.happened")
        assert (len(there.calls), events) == (1, [])
        redirect()
        _log.warning("thing.happened")
        assert (len(there.calls), len(events)) == (1, 1)
