"""A consuming connection: what it counts, acknowledges and measures."""

from __future__ import annotations

import socket
import time
from selectors import EVENT_READ

import pytest
from pamqp import commands, frame

from broker.perf import wire
from broker.perf.peer import PeerSocket
from broker.perf.receiver import DeliveryQuota, LatencyRecorder, Receiver, ReceiverPace
from broker.perf.spool import STAMP
from tests.unit.perf.loose_peer import loose_peer


def delivery(tag: int, body: bytes) -> bytes:
    """Return a delivery as pamqp encodes it."""
    method = commands.Basic.Deliver("ctag", tag, redelivered=False, exchange="x", routing_key="key")
    return frame.marshal(method, 2) + wire.content(2, body, persistent=False)


def receiver(
    peer: PeerSocket, demand: ReceiverPace, quota: DeliveryQuota | None = None
) -> tuple[Receiver, LatencyRecorder]:
    """Return a started receiver and its figures."""
    latencies = LatencyRecorder(demand.body_bytes)
    made = Receiver(peer, demand, latencies, quota or DeliveryQuota(None))
    latencies.start(1)
    made.start(1)
    return made, latencies


def acks(end: socket.socket) -> list[tuple[int, bool]]:
    """Return the received acks as tag and multiple."""
    try:
        rest = end.recv(1 << 16)
    except BlockingIOError:
        return []
    found = []
    while rest:
        taken, _, method = frame.unmarshal(rest)
        rest = rest[taken:]
        assert isinstance(method, commands.Basic.Ack)
        found.append((method.delivery_tag, method.multiple))
    return found


def test_acks_come_in_steps_and_the_rest_at_the_end() -> None:
    """Every third delivery is acked, and the rest when the receiver ends."""
    with loose_peer(2) as (peer, broker):
        one, _ = receiver(peer, ReceiverPace(3, 4))
        broker.send(b"".join(delivery(tag, b"body") for tag in range(1, 9)))
        one.react(EVENT_READ, 1)
        assert (one.delivered, one.acked, one.tally().deliver_bytes) == (8, 6, 32)
        assert acks(broker) == [(3, True), (6, True)]
        one.finish(1.0)
        assert (acks(broker), one.acked) == ([(8, True)], 8)


def test_a_quota_is_shared_and_nothing_above_it_is_acked() -> None:
    """With two receivers that share a quota of five, the second counts the remainder of the first."""
    quota = DeliveryQuota(5)
    with loose_peer(2) as (here, first), loose_peer(2) as (there, second):
        one, _ = receiver(here, ReceiverPace(1, 4), quota)
        other, _ = receiver(there, ReceiverPace(1, 4), quota)
        first.send(b"".join(delivery(tag, b"body") for tag in range(1, 4)))
        second.send(b"".join(delivery(tag, b"body") for tag in range(1, 5)))
        one.react(EVENT_READ, 1)
        other.react(EVENT_READ, 1)
        assert (one.delivered, other.delivered, quota.left) == (3, 2, 0)
        assert acks(second) == [(1, False), (2, False)]


def test_times_are_from_due_and_from_sent() -> None:
    """Both latencies of every message are recorded, also in full buffers; foreign timestamps are ignored."""
    with loose_peer(2) as (peer, broker):
        one, latencies = receiver(peer, ReceiverPace(0, 16))
        now_ns = time.monotonic_ns()
        bodies = [STAMP.pack(now_ns - 5_000_000, now_ns - 2_000_000)] * 40 + [STAMP.pack(1 << 61, 0), bytes(16)]
        broker.send(b"".join(delivery(tag, body) for tag, body in enumerate(bodies, 1)))
        one.react(EVENT_READ, 1)
        assert one.delivered == 42
        assert (latencies.due_times.count, latencies.sent_times.count, latencies.late_times.count) == (40, 40, 40)
        assert latencies.due_times.percentile(1) >= 4_990_000
        assert latencies.late_times.percentile(99) == pytest.approx(3_000_000, rel=0.001)


def test_of_many_messages_a_sample_stands_for_all() -> None:
    """Some messages of a full buffer are measured, and each counts for several."""
    latencies = LatencyRecorder(16)
    latencies.start(1)
    latencies.now_ns = 1000
    latencies.record(STAMP.pack(400, 900) * 1000, 0, 16, 1000)
    assert (latencies.due_times.count, latencies.due_times.percentile(50)) == (1000, 600)
    assert (latencies.sent_times.count, latencies.sent_times.percentile(50)) == (1000, 100)


def test_a_rate_pauses_reading() -> None:
    """At ten per second, reading pauses for two tenths of a second after two messages."""
    with loose_peer(2) as (peer, broker):
        one, _ = receiver(peer, ReceiverPace(0, 4, per_s=10))
        broker.send(delivery(1, b"body") + delivery(2, b"body"))
        one.react(EVENT_READ, 1)
        assert (one.delivered, one.wakes_ns(), one.interest(1)) == (2, 200_000_001, 0)
        one.react(0, 200_000_001)
        assert one.interest(200_000_001) == EVENT_READ


def test_what_came_with_the_answer_to_consume_is_counted_once() -> None:
    """Deliveries that were read before the start are counted, and one that was read in part only when it is whole."""
    with loose_peer(2) as (peer, broker):
        second = delivery(2, b"body")
        peer.received += delivery(1, b"body") + second[:20]
        one, _ = receiver(peer, ReceiverPace(1, 4))
        assert (one.delivered, acks(broker)) == (1, [(1, False)])
        broker.send(second[20:])
        one.react(EVENT_READ, 1)
        assert (one.delivered, acks(broker)) == (2, [(2, False)])
