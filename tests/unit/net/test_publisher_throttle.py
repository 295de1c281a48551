"""The throttle of publishers, without a server."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import Mock

import pytest

from broker.amqp.codec import encode_method
from broker.core.alarms import Alarms, Watermark
from broker.net.publisher_throttle import PublisherThrottle, Stop, ThrottledConnection

pytestmark = pytest.mark.interpreted("a publisher of the test takes the place of a connection")
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
    later.stop_reading.assert_not_called()


class Store:
    """Several publishers and one store; a commit takes all that they added."""

    def __init__(self, publishers: int, alarms: Alarms[ThrottledConnection] | None = None) -> None:
        self.unwritten_bytes = 0
        self.publishers = [Mock(name=str(number)) for number in range(publishers)]
        for publisher in self.publishers:
            publisher.session.vhost.store = self
        self.throttle = PublisherThrottle(alarms or Alarms(()), lambda: self.unwritten_bytes, MOST_BYTES)

    def publish(self, publisher: Mock, added_bytes: int) -> bool:
        """Read a publisher, in a turn of its own, and return whether it is stopped."""
        before_bytes = self.unwritten_bytes
        self.unwritten_bytes += added_bytes
        publisher.session.unwritten_bytes = self.unwritten_bytes
        self.throttle.published(publisher, before_bytes)
        self.throttle.turn()
        return self.is_stopped(publisher)

    def commit(self) -> bool:
        """Take what is unwritten, and return whether the throttle looks again in the next turn."""
        self.unwritten_bytes = 0
        return self.throttle.turn()

    @staticmethod
    def is_stopped(publisher: Mock) -> bool:
        """Return whether a publisher is stopped for the store."""
        calls = [call[0] for call in publisher.method_calls if call[0] in ("stop_reading", "resume_reading")]
        assert "stop_reading" not in [
            before for before, after in pairwise(calls) if before == after
        ]  # never stopped twice
        return bool(calls) and calls[-1] == "stop_reading"


@pytest.mark.parametrize("greedy", [1, 2, 4])
def test_greedy_publishers_stop_and_polite_ones_do_not(greedy: int) -> None:
    """Each greedy one fills about as much as it leaves to all; who adds little, or nothing to write, continues."""
    store = Store(greedy + 2)
    *flooding, polite, transient = store.publishers
    while not all(map(store.is_stopped, flooding)):
        for publisher in flooding:
            if not store.is_stopped(publisher):
                store.publish(publisher, 1)
        store.publish(transient, 0)
        assert store.unwritten_bytes <= MOST_BYTES
    assert MOST_BYTES - store.unwritten_bytes >= MOST_BYTES // (greedy + 1) - MOST_BYTES // 8 - greedy
    for _ in range(2):
        assert not store.publish(polite, 1)
        assert not store.publish(transient, 0)
    store.commit()
    assert not any(store.is_stopped(publisher) for publisher in store.publishers)


def test_all_greedy_publishers_together_are_bounded() -> None:
    """However many they are, each adds no more than one read once the limit is reached, and little before."""
    store = Store(1000)
    for _ in range(3):
        for publisher in store.publishers:
            if not store.is_stopped(publisher):
                store.publish(publisher, 1)
    assert store.unwritten_bytes <= MOST_BYTES + len(store.publishers)
    assert all(store.is_stopped(publisher) for publisher in store.publishers[MOST_BYTES:])
    assert store.throttle.turn()
    assert not store.commit()
    assert not any(store.is_stopped(publisher) for publisher in store.publishers)


def test_a_publisher_of_a_store_that_was_written_goes_on_while_another_store_lags() -> None:
    """A commit resumes the publishers of its own store; those of a store that still waits stay paused."""
    slow, fast = Store(1), Store(1)
    throttle = slow.throttle = fast.throttle = PublisherThrottle(
        Alarms(()), lambda: slow.unwritten_bytes + fast.unwritten_bytes, MOST_BYTES
    )
    throttle.published(slow.publishers[0])
    slow.unwritten_bytes = MOST_BYTES // 5
    throttle.turn()  # begins to count
    while not slow.publish(slow.publishers[0], 1):
        pass
    while not fast.publish(fast.publishers[0], 1):
        pass
    assert fast.commit()
    assert (slow.is_stopped(slow.publishers[0]), fast.is_stopped(fast.publishers[0])) == (True, False)
    slow.commit()
    assert not slow.is_stopped(slow.publishers[0])


def test_a_paused_publisher_goes_on_when_half_of_the_backlog_is_written() -> None:
    """The throttle checks the backlog each turn until half of it is written, and then resumes the publisher."""
    store = Store(1)
    (publisher,) = store.publishers
    while not store.publish(publisher, 1):
        pass
    store.unwritten_bytes = MOST_BYTES // 2 + 1
    assert store.throttle.turn()
    store.unwritten_bytes = MOST_BYTES // 2
    assert store.throttle.turn()
    assert not store.is_stopped(publisher)
    assert not store.commit()
    assert not store.throttle.watching


def test_a_connection_that_has_ended_is_not_among_the_blocked() -> None:
    """An operator sees the connections that an alarm blocks now, and the end of the alarm resumes those alone."""
    alarms: Alarms[ThrottledConnection] = Alarms([Watermark("memory", 1000, "limits.memory_bytes")])
    throttle = PublisherThrottle(alarms, lambda: 0)
    ended, stays = Mock(name="ended"), Mock(name="stays")
    for publisher in (ended, stays):
        publisher.connection.closing = False
        throttle.published(publisher)
    alarms.measure("memory", 1000)
    throttle.alarms_changed()
    assert throttle.blocked == {ended, stays}
    throttle.forget(ended)
    assert throttle.blocked == {stays}
    alarms.measure("memory", 0)
    throttle.alarms_changed()
    stays.resume_reading.assert_called_once_with(Stop.ALARM)
    ended.resume_reading.assert_not_called()


def test_the_reason_of_a_block_fits_in_a_short_string() -> None:
    """PostgreSQL's report of a deadlock is longer than the 255 bytes of connection.blocked: its beginning is sent."""
    alarms: Alarms[ThrottledConnection] = Alarms(())
    throttle = PublisherThrottle(alarms, lambda: 0, MOST_BYTES)
    publisher = Mock(name="publisher")
    publisher.connection.closing = False
    throttle.published(publisher)
    alarms.raise_outage("deadlock detected " + "x" * 300)
    throttle.alarms_changed()
    (blocked,) = [call.args[1] for call in publisher.connection.send.call_args_list]
    assert len(encode_method(0, blocked)) > 255
    assert blocked.reason.startswith("deadlock detected xxx")
