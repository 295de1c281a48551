"""A leaf broker between its interest, its streams and its links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.overlay.aggregation import Aggregation
from broker.overlay.interest import Interest
from broker.overlay.leaf import Leaf
from broker.overlay.packets import Ack, Conjunction, Data, Space, StreamName, StreamRun, Update, UpdateAck, VectorChange
from tests.overlay.faulty_log import MemoryLog

SPACE = Space("/", "orders")
STREAM = StreamName("pb", SPACE)
BOTH = Update(
    1,
    full=True,
    last=True,
    added=(Conjunction(SPACE, "#"),),
    slice={"sb1": 1, "sb2": 1},
    interested=((SPACE, ("sb1", "sb2")),),
)


def publisher(log: MemoryLog, update: Update = BOTH) -> Leaf:
    """Return a leaf with one neighbour broker, which has announced something."""
    interest = Interest("pb", ("inner",), Aggregation.COVERING, 1000, "pb")
    leaf = Leaf("pb", "inner", interest, log.streams)
    leaf.bindings_changed((), ())
    leaf.connected("inner", "b1", 1, 0)
    leaf.received("inner", "b1", update, 0)
    bind(leaf, log)
    return leaf


def bind(leaf: Leaf, log: MemoryLog) -> None:
    """Apply the bindings that the leaf wants, and make its stream durable."""
    for space, added, removed in leaf.take_bindings():
        log.streams[space].bind(added, removed)
    log.streams[SPACE].durable = log.streams[SPACE].last


def publish(log: MemoryLog, count: int) -> None:
    """Publish messages."""
    for _ in range(count):
        log.streams[SPACE].publish("key", b"")
    log.streams[SPACE].durable = log.streams[SPACE].last


@pytest.fixture
def log() -> MemoryLog:
    """Provide an empty log."""
    return MemoryLog([SPACE])


@pytest.fixture
def leaf(log: MemoryLog) -> Leaf:
    """Provide the publisher of the log."""
    return publisher(log)


def test_an_ack_counts_only_for_the_leaves_that_its_sender_had_announced(log: MemoryLog, leaf: Leaf) -> None:
    """An ack of a broker that has lost sight of a leaf must not release what the leaf lacks."""
    publish(log, 3)
    leaf.received("inner", "b1", Ack(STREAM, 4, 2), 0)
    assert log.streams[SPACE].trimmed == 0
    leaf.received("inner", "b1", Ack(STREAM, 3, 1), 0)
    assert log.streams[SPACE].trimmed == 3
    one = Update(2, full=False, last=True, gone=("sb2",), interested=((SPACE, ("sb1",)),))
    leaf.received("inner", "b1", one, 0)
    leaf.received("inner", "b1", Ack(STREAM, 4, 1), 0)
    assert log.streams[SPACE].trimmed == 3


def test_a_restarted_publisher_stores_everything_until_it_knows_what_it_promised(log: MemoryLog) -> None:
    """It has the vector of its stream, and knows no one's patterns."""
    publisher(log)
    publish(log, 1)
    log.crash()
    again = publisher(log, Update(1, full=True, last=True, slice={"sb1": 1}, interested=((SPACE, ("sb1",)),)))
    assert log.streams[SPACE].bound == {"#"}
    known = Update(
        2,
        full=False,
        last=True,
        added=(Conjunction(SPACE, "a"),),
        slice={"sb2": 1},
        interested=((SPACE, ("sb1", "sb2")),),
    )
    again.received("inner", "b1", known, 0)
    bind(again, log)
    assert log.streams[SPACE].bound == {"a"}


def test_a_full_link_stops_the_stream_and_loses_nothing(log: MemoryLog, leaf: Leaf) -> None:
    """It continues where it was."""
    leaf.take_output(0)
    leaf.full("inner", "b1", is_full=True)
    publish(log, 3)
    assert not any(isinstance(packet, StreamRun) for _, _, packet in leaf.take_output(0))
    leaf.full("inner", "b1", is_full=False)
    runs = [packet for _, _, packet in leaf.take_output(0) if isinstance(packet, StreamRun)]
    assert [(run.first, run.last) for run in runs if run.elements] == [(1, 4)]


def later(serial: int, time: int) -> Update:
    """Return an update by which `sb1` has changed its patterns."""
    added = (Conjunction(SPACE, f"a.{time}"),)
    return Update(serial, full=False, last=True, added=added, slice={"sb1": time}, touched=(SPACE,))


def vectors(log: MemoryLog) -> list[tuple[int, int]]:
    """Return the vector changes: their numbers and the new time of `sb1`."""
    return [(change.number, change.new["sb1"]) for change in log.streams[SPACE].changes]


def test_any_number_of_changes_without_a_message_is_at_most_one_vector_change(log: MemoryLog, leaf: Leaf) -> None:
    """The next message has all of them before it, whenever it comes."""
    for serial in range(2, 60):
        leaf.received("inner", "b1", later(serial, serial), serial * 400)
        leaf.tick(serial * 400)
    assert len(vectors(log)) == 1
    publish(log, 2)
    assert vectors(log)[1:] == [(2, 59)]
    assert log.streams[SPACE].durable == 4


def test_a_vector_that_has_just_changed_stays_for_a_while(log: MemoryLog, leaf: Leaf) -> None:
    """Many bindings while messages flow cost few changes."""
    for serial in range(2, 60):
        leaf.tick(5 * serial)
        leaf.received("inner", "b1", later(serial, serial), 5 * serial)
        publish(log, 1)
    assert len(vectors(log)) == 3


def test_a_new_leaf_starts_without_a_message(log: MemoryLog, leaf: Leaf) -> None:
    """It hears of its start point at the next tip; later changes wait for a message, at most half a minute."""
    leaf.take_output(0)
    leaf.tick(1_000)
    log.streams[SPACE].durable = log.streams[SPACE].last
    runs = [packet for _, _, packet in leaf.take_output(1_000) if isinstance(packet, StreamRun)]
    assert [element for run in runs for element in run.elements] == [VectorChange(1, {}, {"sb1": 1, "sb2": 1})]
    leaf.received("inner", "b1", later(2, 9), 2_000)
    for second in range(2, 32):
        leaf.tick(second * 1_000)
    assert vectors(log) == [(1, 1)]
    leaf.tick(32_000)
    assert vectors(log) == [(1, 1), (2, 9)]


def test_a_leaf_that_stops_leaves_the_vector_that_it_knew(log: MemoryLog, leaf: Leaf) -> None:
    """Messages published before it hears of the others again are kept for all of them."""
    leaf.settle()
    assert vectors(log) == [(1, 1)]
    leaf.settle()
    publish(log, 1)
    assert log.streams[SPACE].durable == 2


def test_acks_that_lag_behind_bring_tips(log: MemoryLog, leaf: Leaf) -> None:
    """A leaf that lost the last run is told the position of the stream."""
    publish(log, 3)
    leaf.take_output(0)
    for now_ms in (1_000, 2_000):
        leaf.tick(now_ms)
        tips = [packet for _, _, packet in leaf.take_output(now_ms) if isinstance(packet, StreamRun)]
    assert tips == [StreamRun(STREAM, 5, 4, 1, vector={"sb1": 1, "sb2": 1})]


def subscriber() -> Leaf:
    """Return a leaf `sb` with one binding, which has got a message of `pb`."""
    leaf = Leaf("sb", "inner", Interest("sb", ("inner",), Aggregation.COVERING, 1000, "sb"), {})
    leaf.bindings_changed([("binding", Conjunction(SPACE, "#"), True)], ())
    leaf.connected("inner", "b1", 1, 0)
    vector = VectorChange(1, {}, {"sb": leaf.subscriptions.start("binding")})
    leaf.received("inner", "b1", StreamRun(STREAM, 1, 2, 0, (vector, Data(2, "key", b""))), 0)
    return leaf


def test_a_received_stream_that_no_binding_asks_for_is_forgotten() -> None:
    """But not before what was delivered is durable; a new binding begins at its own start point."""
    leaf = subscriber()
    assert [delivery.data.number for delivery in leaf.take_deliveries()] == [2]
    leaf.tick(1_000)
    leaf.bindings_changed((), ["binding"])
    leaf.tick(2_000)
    assert len(leaf.sinks) == 1
    leaf.committed(STREAM, 2)
    leaf.tick(3_000)
    assert len(leaf.sinks) == 0
    leaf.bindings_changed([("again", Conjunction(SPACE, "#"), True)], ())
    start = leaf.subscriptions.start("again")
    run = StreamRun(
        STREAM, 3, 5, 1, (Data(3, "key", b""), VectorChange(4, {"sb": 1}, {"sb": start}), Data(5, "key", b""))
    )
    leaf.received("inner", "b1", run, 4_000)
    assert [delivery.data.number for delivery in leaf.take_deliveries()] == [5]


def test_streams_of_a_leaf_that_is_given_up_are_forgotten() -> None:
    """A commit that comes late does no harm."""
    leaf = subscriber()
    assert len(leaf.sinks) == 1
    leaf.forget("pb", 0)
    assert (len(leaf.sinks), leaf.take_deliveries()) == (0, [])
    leaf.committed(STREAM, 2)


def test_a_leaf_goes_above_a_virtual_time_that_others_have_of_it_and_that_it_never_had() -> None:
    """A vector says so, or the answer to an update: its data folder is an older copy, or its clock was ahead."""
    leaf = Leaf("sb", "inner", Interest("sb", ("inner",), Aggregation.COVERING, 1000, "sb"), {})
    leaf.bindings_changed((), ())
    leaf.connected("inner", "b1", 1, 0)
    leaf.received("inner", "b1", UpdateAck(1, 5_000), 0)
    assert leaf.interest.time("sb") > 5_000
    leaf.received("inner", "b1", StreamRun(STREAM, 3, 2, 1, vector={"sb": 90_000}), 1_000)
    assert leaf.interest.time("sb") > 90_000
    assert leaf.take_skipped_times() == [5_000, 90_000]
    leaf.received("inner", "b1", UpdateAck(2, leaf.interest.time("sb")), 2_000)
    assert leaf.take_skipped_times() == []


def test_a_binding_gets_nothing_that_was_promised_to_another_life_of_its_leaf() -> None:
    """The earlier owner of that virtual time did not know of the binding."""
    leaf = subscriber()
    leaf.take_deliveries()
    leaf.received("inner", "b1", StreamRun(STREAM, 3, 3, 1, (VectorChange(3, {"sb": 1}, {"sb": 9_000}),)), 0)
    leaf.received("inner", "b1", StreamRun(STREAM, 4, 4, 3, (Data(4, "key", b""),)), 0)
    assert leaf.take_deliveries() == []
    time = leaf.interest.time("sb")
    change = VectorChange(5, {"sb": 9_000}, {"sb": time})
    leaf.received("inner", "b1", StreamRun(STREAM, 5, 6, 3, (change, Data(6, "key", b""))), 0)
    assert [delivery.data.number for delivery in leaf.take_deliveries()] == [6]


def test_an_own_stream_that_has_ended_is_forgotten_when_all_have_it(log: MemoryLog, leaf: Leaf) -> None:
    """Not before: others may still ask for it."""
    publish(log, 2)
    leaf.take_output(0)
    stream = log.streams.pop(SPACE)
    leaf.tick(1_000)
    assert list(leaf.sources) == [SPACE]
    leaf.received("inner", "b1", Ack(STREAM, stream.durable, 1), 0)
    leaf.tick(2_000)
    assert list(leaf.sources) == []


def test_a_stream_whose_acks_stand_still_goes_to_another_broker(log: MemoryLog, leaf: Leaf) -> None:
    """A broker that hangs or a link that loses everything is avoided for a while; all brokers hear a tip at once."""
    for number, broker in enumerate(("b2", "b3"), 2):
        leaf.connected("inner", broker, number, 0)
        leaf.received("inner", broker, BOTH, 0)
    publish(log, 3)
    used = [brokers_of(leaf, 0)]
    for now_ms in (100, 500, 1_000, 1_500, 2_000):
        leaf.tick(now_ms)
        publish(log, 1)
        used.append(brokers_of(leaf, now_ms))
    assert [len(brokers) for brokers in used] == [1, 1, 1, 1, 1, 1]
    assert used[0] == used[1] != used[2] == used[3] != used[4]
    assert set().union(*used) == {"b1", "b2", "b3"}
    leaf.received("inner", "b1", Ack(STREAM, log.streams[SPACE].last, 1), 2_000)
    leaf.tick(20_000)
    publish(log, 1)
    assert brokers_of(leaf, 20_000) == used[0]


def test_the_choice_stays_while_a_leaf_is_away(log: MemoryLog, leaf: Leaf) -> None:
    """The stream waits for that leaf then, over whichever broker."""
    leaf.connected("inner", "b2", 2, 0)
    away = replace(BOTH, unreachable=("sb2",))
    leaf.received("inner", "b2", away, 0)
    leaf.received("inner", "b1", replace(away, serial=2, full=False), 0)
    used = []
    for now_ms in (0, 100, 500, 1_500, 2_500):
        publish(log, 1)
        leaf.tick(now_ms)
        used.append(brokers_of(leaf, now_ms))
    assert len(set(used)) == 1


def brokers_of(leaf: Leaf, now_ms: int) -> frozenset[str]:
    """Return the brokers that the next runs with messages go to."""
    output = leaf.take_output(now_ms)
    return frozenset(broker for _, broker, packet in output if isinstance(packet, StreamRun) and packet.elements)
