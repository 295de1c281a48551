"""A publishing connection: window, schedule, limit, and the broker's answers."""

from __future__ import annotations

import socket
from selectors import EVENT_READ, EVENT_WRITE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.perf import wire
from broker.perf.histogram import Histogram
from broker.perf.peer import PeerSocket
from broker.perf.sender import NEVER_NS, Schedule, Sender, SenderPace
from broker.perf.spool import Material, Spool
from tests.unit.perf.loose_peer import loose_peer

SPOOL_BYTES = 10_000


def sender(peer: PeerSocket, pace: SenderPace, at_ns: int = 0, size: int = 16) -> Sender:
    """Return a sender whose schedule starts at `at_ns`."""
    made = Sender(peer, Spool(Material("x", ("key",), size), 0, SPOOL_BYTES), pace, Histogram())
    made.start(at_ns)
    return made


def arrived(end: socket.socket) -> int:
    """Return the number of received messages."""
    received = b""
    while True:
        try:
            received += end.recv(1 << 20)
        except BlockingIOError:
            return received.count(wire.METHOD_HEAD.pack(*wire.BASIC_PUBLISH))


def test_no_more_than_the_window_waits_for_confirms() -> None:
    """Each confirm opens the window by the messages that it confirms, and records the time of each."""
    with loose_peer() as (peer, broker):
        one = sender(peer, SenderPace(window=10))
        one.react(EVENT_WRITE, 100)
        one.react(EVENT_WRITE, 200)
        assert (arrived(broker), one.published, one.interest(200)) == (10, 10, EVENT_READ)
        broker.send(wire.basic_ack(1, 4, multiple=True))
        one.react(EVENT_READ, 300)
        assert (arrived(broker), one.published, one.tally().confirmed) == (4, 14, 4)
        assert (one.confirm_times.count, one.confirm_times.percentile(50)) == (4, 200)


def test_a_slice_bounds_what_has_one_time_and_is_sent_at_once() -> None:
    """A message is stamped right before it is sent, not when its place in a large buffer is prepared."""
    with loose_peer() as (peer, broker):
        spool = Spool(Material("x", ("key",), 16), 0, SPOOL_BYTES)
        one = Sender(peer, spool, SenderPace(messages=100), Histogram(), slice_bytes=3 * spool.stride + 1)
        one.start(0)
        one.react(EVENT_WRITE, 1)
        assert arrived(broker) == 3
        one.react(EVENT_WRITE, 2)
        assert arrived(broker) == 3


def test_messages_are_sent_when_they_are_due() -> None:
    """1,000 per second are one per millisecond from the start, and missed messages are sent at once."""
    with loose_peer() as (peer, broker):
        one = sender(peer, SenderPace(per_s=1000), at_ns=10_000_000)
        one.react(0, 9_999_999)
        assert (arrived(broker), one.wakes_ns()) == (0, 10_000_000)
        one.react(0, 10_000_000)
        assert (arrived(broker), one.wakes_ns()) == (1, 11_000_000)
        one.react(0, 14_000_000)
        assert (arrived(broker), one.wakes_ns(), one.interest(14_000_000)) == (4, 15_000_000, EVENT_READ)


def test_a_window_that_is_full_has_no_timer() -> None:
    """With a full window no timer runs, because only a confirm opens it."""
    with loose_peer() as (peer, _):
        one = sender(peer, SenderPace(window=2, per_s=1000))
        one.react(0, 50_000_000)
        assert (one.published, one.wakes_ns()) == (2, NEVER_NS)


def test_what_the_kernel_does_not_take_is_not_published() -> None:
    """A full socket holds messages back, and only complete ones count as published."""
    with loose_peer() as (peer, broker):
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one = sender(peer, SenderPace(messages=1000), size=3000)
        for _ in range(1000):
            one.react(EVENT_WRITE, 1)
        held = one.published
        assert 0 < held < 1000
        assert not one.done
        one.stop()
        total = 0
        while not one.done:
            total += arrived(broker)
            one.react(EVENT_WRITE, 2)
        assert total + arrived(broker) == one.published <= held + 4


@pytest.mark.parametrize("per_s", [0.001, 0.3, 1, 3, 7.7, 300, 999.999, 12_345, 1_000_000, 3_000_000_000])
def test_when_a_message_is_due_it_counts_as_due_and_not_before(per_s: float) -> None:
    """At its due time a message counts as due, and not before, at every rate and after years."""
    schedule = Schedule(per_s, 10**15)
    for number in (*range(50), 10**6, 10**9 + 7):
        at_ns = schedule.due_ns(number)
        assert schedule.due(at_ns) >= number + 1
        assert schedule.due(at_ns - 1) <= number


@given(st.floats(min_value=0.001, max_value=1e7), st.integers(min_value=0, max_value=10**12))
def test_what_is_due_is_what_the_times_say(per_s: float, elapsed_ns: int) -> None:
    """The last due message is due by now, and the next one is not."""
    schedule = Schedule(per_s, 0)
    count = schedule.due(elapsed_ns)
    assert schedule.due_ns(count - 1) <= elapsed_ns < schedule.due_ns(count)


def test_nothing_is_due_before_the_start_and_a_second_has_its_rate() -> None:
    """Nothing is due before the start, and 300 per second are 300 from the start of a second to its end."""
    schedule = Schedule(300, 5000)
    assert (schedule.due(4999), schedule.due(5000), schedule.due(5000 + 10**9 - 1)) == (0, 1, 300)
