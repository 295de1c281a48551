"""The throttle of publishers, without a server."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from broker.core.alarms import Alarms, Watermark
from broker.net.publisher_throttle import PublisherThrottle, ThrottledConnection
from broker.net.stop import Stop

MOST_BYTES = 100


def test_a_backlog_whose_publishers_are_gone_pauses_nobody_later() -> None:
    """The throttle checks the store's backlog each turn until it is written, also after all publishers have gone."""
    alarms: Alarms[ThrottledConnection] = Alarms(())
    pending = [MOST_BYTES + 1]
    throttle = PublisherThrottle(alarms, lambda: pending[0], MOST_BYTES)
    first, later = Mock(name="first"), Mock(name="later")
    throttle.published(first)
    assert throttle.turn()
    throttle.forget(first)
    assert throttle.turn()
    pending[0] = 0
    assert not throttle.turn()
    assert not throttle.watching
    throttle.published(later)
    later.stop.assert_not_called()


@pytest.mark.interpreted("a publisher of the test takes the place of a connection")
def test_a_paused_publisher_goes_on_when_half_of_the_backlog_is_written() -> None:
    """The throttle checks the backlog each turn until half of it is written, and then resumes the publisher."""
    alarms: Alarms[ThrottledConnection] = Alarms(())
    pending = [MOST_BYTES + 1]
    throttle = PublisherThrottle(alarms, lambda: pending[0], MOST_BYTES)
    publisher = Mock(name="publisher")
    throttle.published(publisher)
    assert throttle.turn()
    throttle.published(publisher)
    publisher.stop.assert_called_once_with(Stop.STORE)
    pending[0] = MOST_BYTES // 2 + 1
    assert throttle.turn()
    publisher.go.assert_not_called()
    pending[0] = MOST_BYTES // 2
    assert not throttle.turn()
    publisher.go.assert_called_once_with(Stop.STORE)


@pytest.mark.interpreted("a mock takes the place of a connection")
def test_a_connection_that_has_ended_is_not_among_the_blocked() -> None:
    """An operator sees the connections that an alarm blocks now, and the end of the alarm resumes those alone."""
    alarms: Alarms[ThrottledConnection] = Alarms([Watermark("memory", 1000, "limits.memory_bytes")])
    throttle = PublisherThrottle(alarms, lambda: 0)
    ended, stays = Mock(name="ended"), Mock(name="stays")
    for publisher in (ended, stays):
        throttle.published(publisher)
    alarms.measure("memory", 1000)
    throttle.alarms_changed()
    assert throttle.blocked == {ended, stays}
    throttle.forget(ended)
    assert throttle.blocked == {stays}
    alarms.measure("memory", 0)
    throttle.alarms_changed()
    stays.go.assert_called_once_with(Stop.ALARM)
    ended.go.assert_not_called()
