"""An inner broker between its neighbours."""

from __future__ import annotations

import pytest

from broker.overlay.aggregation import Aggregation
from broker.overlay.inner import Inner
from broker.overlay.interest import Interest
from broker.overlay.logical_broker import Timing
from broker.overlay.packets import (
    Ack,
    Conjunction,
    Data,
    Nack,
    Packet,
    Space,
    StreamName,
    StreamRun,
    Update,
    VectorChange,
)

SPACE = Space("/", "orders")
STREAM = StreamName("pb", SPACE)
VECTOR = VectorChange(1, {}, {"sb": 1})


@pytest.fixture
def broker() -> Inner:
    """Return a broker between `up`, where `pb` publishes, and `down`, where `sb` wants `wanted`."""
    broker = Inner(Interest("here", ("up", "down"), Aggregation.COVERING, 1000), ("up", "down"))
    broker.connected("up", "pb", 1, 0)
    broker.connected("down", "sb", 1, 0)
    broker.received("up", "pb", Update(1, full=True, last=True, slice={"pb": 1}), 0)
    wanted = (Conjunction(SPACE, "wanted"),)
    interested = ((SPACE, ("sb",)),)
    update = Update(1, full=True, last=True, added=wanted, slice={"sb": 1}, interested=interested)
    broker.received("down", "sb", update, 0)
    broker.received("up", "pb", StreamRun(STREAM, 1, 1, 0, (VECTOR,)), 0)
    broker.take_output(0)
    return broker


def output(broker: Inner, now_ms: int, kind: type[Packet]) -> list[tuple[str, Packet]]:
    """Return the packets of a kind, and the tree node that each is for."""
    return [(node, packet) for node, _, packet in broker.take_output(now_ms) if isinstance(packet, kind)]


def test_silence_is_announced_when_nothing_follows(broker: Inner) -> None:
    """The leaf can acknowledge it then."""
    broker.received("up", "pb", StreamRun(STREAM, 2, 2, 1, (Data(2, "unwanted", b""),)), 10)
    assert output(broker, 10, StreamRun) == []
    broker.tick(109)
    assert output(broker, 109, StreamRun) == []
    broker.tick(110)
    assert output(broker, 110, StreamRun) == [("down", StreamRun(STREAM, 2, 2, 1))]


def test_a_link_that_was_full_is_told_how_far_the_streams_have_got(broker: Inner) -> None:
    """Missing numbers are detected at once, and requested."""
    broker.full("down", "sb", is_full=True)
    broker.received("up", "pb", StreamRun(STREAM, 2, 2, 1, (Data(2, "wanted", b""),)), 0)
    assert output(broker, 0, StreamRun) == []
    broker.full("down", "sb", is_full=False)
    assert output(broker, 0, StreamRun) == [("down", StreamRun(STREAM, 3, 2, 1, vector={"sb": 1}))]


def test_a_new_link_is_told_how_far_the_streams_have_got(broker: Inner) -> None:
    """Numbers lost with the old link are detected at once."""
    broker.lost("down", "sb", 0)
    broker.connected("down", "sb", 2, 0)
    assert output(broker, 0, StreamRun) == [("down", StreamRun(STREAM, 2, 1, 1, vector={"sb": 1}))]


def test_an_ack_counts_for_what_its_sender_had_announced(broker: Inner) -> None:
    """And continues with the serial of what this broker has announced itself."""
    broker.received("down", "sb", Ack(STREAM, 1, 2), 0)
    assert output(broker, 100, Ack) == []
    broker.received("down", "sb", Ack(STREAM, 1, 1), 0)
    serial = broker.interest.announced("up", "pb")
    assert serial > 0
    assert output(broker, 200, Ack) == [("up", Ack(STREAM, 1, serial))]


def test_a_nack_goes_where_the_stream_comes_from(broker: Inner) -> None:
    """And never back."""
    nack = Nack(STREAM, 2, 3, "sb", 1, 100)
    broker.received("down", "sb", nack, 0)
    assert output(broker, 0, Nack) == [("up", nack)]
    broker.received("up", "pb", nack, 0)
    assert output(broker, 0, Nack) == []


def look_for_idle_streams(broker: Inner, now_ms: int) -> int:
    """Let the broker look twice, and return how many streams it knows."""
    for _ in range(2):
        now_ms += Timing().forget_ms
        broker.tick(now_ms)
        broker.take_output(now_ms)
    return len(broker.forwardings)


def test_a_stream_that_somebody_wants_is_remembered(broker: Inner) -> None:
    """However long nothing is published."""
    assert look_for_idle_streams(broker, 0) == 1
    assert look_for_idle_streams(broker, 1_000_000) == 1


def test_a_stream_that_nobody_wants_any_more_is_forgotten(broker: Inner) -> None:
    """It begins with a vector again, when someone does."""
    broker.received("down", "sb", Update(2, full=False, last=True, slice={"sb": 2}, interested=((SPACE, ()),)), 0)
    assert look_for_idle_streams(broker, 0) == 0
    wanted = (Conjunction(SPACE, "wanted"),)
    again = Update(3, full=False, last=True, added=wanted, slice={"sb": 3}, interested=((SPACE, ("sb",)),))
    broker.received("down", "sb", again, 50_000)
    run = StreamRun(STREAM, 2, 3, 1, (VectorChange(2, {"sb": 1}, {"sb": 3}), Data(3, "wanted", b"")))
    broker.received("up", "pb", run, 50_000)
    assert output(broker, 50_000, StreamRun) == [("down", run)]


def test_streams_of_leaves_that_come_and_go_are_forgotten(broker: Inner) -> None:
    """A broker that runs for years has the streams of those leaves that are there."""
    now_ms = 0
    for name in (f"leaf{number}" for number in range(200)):
        now_ms += 1_000
        serial = broker.interest.applied("up", "pb") + 1
        broker.received("up", "pb", Update(serial, full=False, last=True, slice={name: 1}), now_ms)
        run = StreamRun(StreamName(name, SPACE), 1, 2, 0, (VectorChange(1, {}, {"sb": 1}), Data(2, "wanted", b"")))
        broker.received("up", "pb", run, now_ms)
        broker.received("up", "pb", Update(serial + 1, full=False, last=True, gone=(name,)), now_ms)
        broker.tick(now_ms)
        broker.take_output(now_ms)
        assert len(broker.forwardings) <= 1 + 2 * Timing().forget_ms // 1_000
    peer = broker.peers.find("down", "sb")
    assert peer is not None
    assert look_for_idle_streams(broker, now_ms) == len(peer.vectors) == 1
