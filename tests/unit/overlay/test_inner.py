"""An inner broker between its neighbours."""

from __future__ import annotations

from broker.overlay.aggregation import Aggregation
from broker.overlay.inner import Inner
from broker.overlay.interest import Interest
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


def inner() -> Inner:
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


def test_silence_is_announced_when_nothing_follows() -> None:
    """The leaf can acknowledge it then."""
    broker = inner()
    broker.received("up", "pb", StreamRun(STREAM, 2, 2, 1, (Data(2, "unwanted", b""),)), 10)
    assert output(broker, 10, StreamRun) == []
    broker.tick(109)
    assert output(broker, 109, StreamRun) == []
    broker.tick(110)
    assert output(broker, 110, StreamRun) == [("down", StreamRun(STREAM, 2, 2, 1))]


def test_a_link_that_was_full_is_told_how_far_the_streams_have_got() -> None:
    """What was left out is missed at once, and asked for."""
    broker = inner()
    broker.full("down", "sb", is_full=True)
    broker.received("up", "pb", StreamRun(STREAM, 2, 2, 1, (Data(2, "wanted", b""),)), 0)
    assert output(broker, 0, StreamRun) == []
    broker.full("down", "sb", is_full=False)
    assert output(broker, 0, StreamRun) == [("down", StreamRun(STREAM, 3, 2, 1, vector={"sb": 1}))]


def test_a_new_link_is_told_how_far_the_streams_have_got() -> None:
    """What was lost with the old one is missed at once."""
    broker = inner()
    broker.lost("down", "sb", 0)
    broker.connected("down", "sb", 2, 0)
    assert output(broker, 0, StreamRun) == [("down", StreamRun(STREAM, 2, 1, 1, vector={"sb": 1}))]


def test_an_ack_counts_for_what_its_sender_had_announced() -> None:
    """And goes on with the serial of what this broker has announced itself."""
    broker = inner()
    broker.received("down", "sb", Ack(STREAM, 1, 2), 0)
    assert output(broker, 100, Ack) == []
    broker.received("down", "sb", Ack(STREAM, 1, 1), 0)
    serial = broker.interest.announced("up", "pb")
    assert serial > 0
    assert output(broker, 200, Ack) == [("up", Ack(STREAM, 1, serial))]


def test_a_nack_goes_where_the_stream_comes_from() -> None:
    """And never back."""
    broker = inner()
    nack = Nack(STREAM, 2, 3, "sb", 1, 100)
    broker.received("down", "sb", nack, 0)
    assert output(broker, 0, Nack) == [("up", nack)]
    broker.received("up", "pb", nack, 0)
    assert output(broker, 0, Nack) == []
