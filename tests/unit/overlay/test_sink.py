"""One stream at a leaf that subscribes."""

from __future__ import annotations

from broker.overlay.packets import Data, Element, Nack, Space, StreamName, StreamRun, VectorChange
from broker.overlay.sink import GRACE_MS, WHOLE_STREAM, ByteBudget, Delivery, Sink, StreamGap

STREAM = StreamName("pb", Space("/", "orders"))
BASE = VectorChange(3, {"sb": 1}, {"sb": 2})


def data(number: int) -> Data:
    """Return a message."""
    return Data(number, "key", b"content")


def run(first: int, *elements: Element, vector_at: int = 3, **rest: object) -> StreamRun:
    """Return a run whose elements are all that it has."""
    return StreamRun(STREAM, first, first + len(elements) - 1, vector_at, elements, **rest)  # type: ignore[arg-type] # tests pass target, lost and vector


def sink(position: int | None = None, limit_bytes: int = 1_000_000) -> Sink:
    """Return a sink of `sb`."""
    return Sink("sb", STREAM, position, ByteBudget(limit_bytes))


def numbers(deliveries: list[Delivery]) -> list[int]:
    """Return the numbers of deliveries."""
    return [delivery.data.number for delivery in deliveries]


def based() -> Sink:
    """Return a sink that has passed its base, number 3."""
    result = sink()
    assert result.received(run(2, data(2), BASE), 2) == []
    assert result.position == 3
    return result


def test_the_vector_change_that_reaches_the_start_point_is_the_base() -> None:
    """Earlier messages were not meant for the leaf."""
    later = based()
    assert later.received(run(4, data(4)), 2) == [Delivery(STREAM, data(4), 2)]


def test_without_the_base_the_stream_is_asked_for_from_there() -> None:
    """A run that shows that the start point was passed is not a base itself: messages before it may be missing."""
    late = sink()
    assert late.received(run(7, data(7), vector={"sb": 2}), 2) == []
    assert late.position is None
    assert late.ack() is None
    assert late.nack(2, 0, 100) is None
    assert late.nack(2, GRACE_MS, 100) == Nack(STREAM, 0, 0, "sb", 2, 100)
    answer = StreamRun(STREAM, 1, 7, 0, (BASE, data(5), data(7)), "sb", vector={})
    assert numbers(late.received(answer, 2)) == [5, 7]


def test_a_vector_change_behind_the_start_point_is_no_base() -> None:
    """Messages between the start point and it may be missing."""
    late = sink()
    assert late.received(run(6, VectorChange(6, {"sb": 2}, {"sb": 4}), data(7)), 2) == []
    assert late.position is None


def test_a_stream_that_has_not_heard_of_the_leaf_is_left_alone() -> None:
    """The base will come with the vector change that names the leaf."""
    early = sink()
    early.received(run(7, data(7), vector={"other": 2}), 2)
    assert early.nack(2, 1_000, 100) is None


def test_order_is_kept_and_nothing_comes_twice() -> None:
    """Runs may arrive in any order, and overlap."""
    ordered = based()
    assert ordered.received(run(6, data(6), data(7)), 2) == []
    assert ordered.received(run(6, data(6)), 2) == []
    assert ordered.received(run(9, data(9)), 2) == []
    assert numbers(ordered.received(run(4, data(4), data(5), data(6)), 2)) == [4, 5, 6, 7]
    assert ordered.received(run(5, data(5), data(6)), 2) == []
    assert numbers(ordered.received(run(7, data(7), data(8)), 2)) == [8, 9]
    assert ordered.ack() == 2
    ordered.committed(9)
    assert ordered.ack() == 9


def test_a_gap_is_asked_for_once_until_the_answer_is_late() -> None:
    """One question is open at a time, and the time to wait doubles."""
    gappy = based()
    gappy.received(run(6, data(6)), 2)
    assert gappy.nack(2, 0, 100) is None
    asked = Nack(STREAM, 4, 5, "sb", 2, 100)
    assert gappy.nack(2, 20, 100) == asked
    assert gappy.nack(2, 319, 100) is None
    assert gappy.nack(2, 320, 100) == asked
    assert gappy.nack(2, 919, 100) is None
    assert gappy.nack(2, 920, 100) == asked


def test_the_next_part_is_asked_for_as_soon_as_one_has_come() -> None:
    """A leaf that was away pulls what it lacks, part by part."""
    behind = based()
    behind.received(StreamRun(STREAM, 101, 100, 3), 2)
    assert behind.nack(2, 0, 100) is None
    assert behind.nack(2, 20, 100) == Nack(STREAM, 4, 100, "sb", 2, 100)
    behind.received(run(4, data(4), data(5), target="sb"), 2)
    assert behind.nack(2, 25, 100) == Nack(STREAM, 6, 100, "sb", 2, 100)


def test_a_delivery_is_acknowledged_when_it_is_durable() -> None:
    """UnwantedRange behind it has to wait with it."""
    acknowledged = based()
    acknowledged.received(run(4, data(4)), 2)
    acknowledged.received(StreamRun(STREAM, 5, 8, 3), 2)
    assert acknowledged.ack() == 2
    acknowledged.committed(4)
    assert acknowledged.ack() == 8


def test_a_restarted_leaf_takes_nothing_before_it_knows_its_own_time() -> None:
    """It asks, because an answer has the vector."""
    restarted = sink(position=5)
    assert restarted.received(run(6, data(6)), 2) == []
    assert restarted.position == 5
    assert numbers(restarted.received(run(6, data(6), vector={"sb": 2}), 2)) == [6]


def test_a_binding_that_has_not_started_gets_nothing() -> None:
    """The delivery says up to which start point bindings get it."""
    mixed = based()
    (delivery,) = mixed.received(run(4, data(4)), 2)
    assert delivery.virtual_time == 2
    assert mixed.received(run(5, data(5)), 5) == []


def test_numbers_that_are_lost_are_told_once() -> None:
    """The leaf passes them, and what follows comes with its vector again."""
    cut = based()
    cut.received(StreamRun(STREAM, 4, 8, 3, (), "sb", lost=True), 2)
    cut.received(StreamRun(STREAM, 4, 8, 3, (), "sb", lost=True), 2)
    assert cut.take_gaps() == [StreamGap(STREAM, 4, 8)]
    assert numbers(cut.received(run(9, data(9), vector={"sb": 2}), 2)) == [9]


def test_a_leaf_that_was_given_up_finds_a_gap() -> None:
    """Its entry vanishes though it has bindings that have started."""
    given_up = based()
    given_up.received(run(4, VectorChange(4, {"sb": 2}, {})), 2)
    assert given_up.take_gaps() == [StreamGap(STREAM, 4, 4)]


def test_what_waits_is_bounded() -> None:
    """Runs that do not fit are requested later."""
    full = sink(position=3, limit_bytes=500)
    full.received(run(5, data(5), data(6)), 2)
    full.received(run(8, data(8), data(9)), 2)
    full.nack(2, 0, 100)
    assert full.nack(2, 20, 100) == Nack(STREAM, 4, 4, "sb", 2, 100)
    assert numbers(full.received(run(4, data(4), vector={"sb": 2}), 2)) == [4, 5, 6]
    assert full.nack(2, 21, 100) == Nack(STREAM, 7, 9, "sb", 2, 100)


def test_after_a_crash_messages_are_doubtful_up_to_what_the_publishing_leaf_tells() -> None:
    """A consumer may have got any of them before the crash; a tip of a broker between may be older than that."""
    again = Sink("sb", STREAM, 3, ByteBudget(1_000), doubtful_upto=WHOLE_STREAM)
    again.received(run(4, vector_at=3, vector={"sb": 2}), 2)
    assert again.nack(2, 0, 100) is None
    assert again.nack(2, GRACE_MS, 100) == Nack(STREAM, WHOLE_STREAM, WHOLE_STREAM, "sb", 2, 100)
    first = again.received(run(4, data(4), vector={"sb": 2}), 2)
    assert [delivery.doubtful for delivery in first] == [True]
    again.received(StreamRun(STREAM, 7, 6, 3, (), "sb", vector={"sb": 2}), 2)
    later = again.received(run(5, data(5), data(6), data(7)), 2)
    assert [delivery.doubtful for delivery in later] == [True, True, False]
    assert again.nack(2, 1_000, 100) is None
    orderly = Sink("sb", STREAM, 3, ByteBudget(1_000))
    assert [delivery.doubtful for delivery in orderly.received(run(4, data(4), vector={"sb": 2}), 2)] == [False]


def test_what_has_arrived_is_not_lost_with_what_was_before_it() -> None:
    """A limit forces out what is asked for, and more; only what has not arrived is a gap."""
    cut = based()
    cut.received(run(6, data(6)), 2)
    cut.received(run(9, data(9), data(10)), 2)
    cut.received(run(14, data(14), vector_at=12), 2)  # with a vector that is not known
    assert numbers(cut.received(StreamRun(STREAM, 4, 9, 3, (), "sb", lost=True), 2)) == [6, 9, 10]
    assert cut.take_gaps() == [StreamGap(STREAM, 4, 5), StreamGap(STREAM, 7, 8)]
    assert cut.position == 10
    assert numbers(cut.received(StreamRun(STREAM, 11, 13, 3, (), "sb", lost=True), 2)) == []
    assert numbers(cut.received(run(14, data(14), vector_at=12, vector={"sb": 2}), 2)) == [14]
