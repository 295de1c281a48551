"""A stream at the leaf that publishes it."""

from __future__ import annotations

from broker.overlay.packets import Nack, Space, StreamName, StreamRun, VectorChange
from broker.overlay.sink import WHOLE_STREAM
from broker.overlay.source import StreamSource
from tests.overlay.faulty_log import MemoryLog

SPACE = Space("/", "orders")
STREAM = StreamName("pb", SPACE)


def opened(log: MemoryLog) -> StreamSource:
    """Return the stream of a log whose elements are durable."""
    log.streams[SPACE].durable = log.streams[SPACE].last
    return StreamSource(STREAM, log.streams[SPACE])


def log_with(*parts: dict[str, int] | int) -> MemoryLog:
    """Return a log: a number is this many messages, a mapping a vector change."""
    log = MemoryLog([SPACE])
    log.streams[SPACE].bind({"#"})
    vector: dict[str, int] = {}
    for part in parts:
        if isinstance(part, int):
            for _ in range(part):
                log.streams[SPACE].publish("key", b"content")
        else:
            log.streams[SPACE].append_vector(vector, part, 0)
            vector = part
    return log


def nack(first: int, last: int = 0, vst: int = 2, leaf: str = "sb") -> Nack:
    """Return a question of a leaf."""
    return Nack(STREAM, first, last, leaf, vst, 10_000)


def kept(runs: list[StreamRun] | None) -> list[tuple[int, int, list[int], bool]]:
    """Return first, last, numbers of elements and whether it is lost, of each run."""
    assert runs is not None
    return [(run.first, run.last, [element.number for element in run.elements], run.lost) for run in runs]


def never(_leaf: str, _time: int) -> bool:
    """Say of no leaf that it has lost interest."""
    return False


def test_a_vector_never_falls_and_keeps_leaves_that_nobody_knows_yet() -> None:
    """After a restart the brokers next to it have not told everything yet."""
    log = log_with({"sb": 5, "other": 7})
    source = opened(log)
    source.review({"sb": 3}, never, ())
    assert (source.is_stale, source.has_newcomers) == (False, False)
    source.review({"sb": 6, "new": 1}, never, ())
    assert (source.is_stale, source.has_newcomers) == (True, True)
    source.change_vector()
    assert log.streams[SPACE].changes[-1] == VectorChange(2, {"sb": 5, "other": 7}, {"sb": 6, "other": 7, "new": 1})
    assert not source.is_stale


def test_what_was_known_between_two_vector_changes_is_not_forgotten() -> None:
    """An older replica that is left says nothing about a leaf that was known later; one that comes back continues."""
    source = opened(log_with({"sb": 5}))
    source.review({"sb": 8}, never, ())
    source.review({"sb": 7}, never, ())  # an older replica is the only one left
    source.review({}, lambda _leaf, time: time <= 6, ())
    assert source.vector == {"sb": 8}
    source.review({}, lambda _leaf, time: time <= 8, ())
    assert source.vector == {}
    source.review({"sb": 4}, never, ())
    assert source.vector == {"sb": 5}


def test_a_leaf_without_interest_leaves_the_vector_and_holds_nothing_back() -> None:
    """Its acks are not needed any more."""
    log = log_with({"sb": 5, "other": 7}, 3)
    source = opened(log)
    source.acked(0, ["sb"], 4)
    assert source.trimmed == 0
    source.review({"sb": 5}, lambda leaf, _time: leaf == "other", ())
    source.trim()
    assert (source.trimmed, log.streams[SPACE].last) == (4, 4)


def test_nothing_is_dropped_before_all_leaves_have_it() -> None:
    """The slowest leaf decides, also one that never acknowledged anything."""
    source = opened(log_with({"sb": 5, "other": 7}, 4))
    source.acked(0, ["sb"], 5)
    assert source.trimmed == 0
    source.acked(0, ["other"], 3)
    assert source.trimmed == 3
    source.acked(9, ["other"], 99)
    assert source.trimmed == 3
    assert not source.rolled_back


def test_a_leaf_that_has_more_than_the_data_folder_has_all_of_it() -> None:
    """The folder is an older copy then. What it lacks of an incarnation that others had, no one needs from it."""
    source = opened(log_with({"sb": 5, "other": 7}, 4))
    source.acked(0, ["sb"], 5)
    source.acked(0, ["other"], 99)
    assert source.trimmed == 5
    assert source.rolled_back == {"other": 99}


def test_a_leaf_that_joins_needs_nothing_from_before() -> None:
    """It has a right to what follows the vector change."""
    log = log_with({"sb": 5}, 4)
    source = opened(log)
    source.acked(0, ["sb"], 5)
    source.review({"sb": 5, "new": 1}, never, ())
    source.change_vector()
    log.streams[SPACE].durable = log.streams[SPACE].last
    source.acked(0, ["sb"], 6)
    assert source.trimmed == 5


def test_runs_carry_their_vector() -> None:
    """The vector change in force before the run."""
    source = opened(log_with({"sb": 5}, 2))
    source.sent = 1
    run = source.run(10_000)
    assert run is not None
    assert (run.first, run.last, run.vector_at, run.vector) == (2, 3, 1, {"sb": 5})
    assert source.run(10_000) is None
    tip = source.tip()
    assert (tip.first, tip.last, tip.vector_at) == (4, 3, 1)


def test_what_was_dropped_because_all_have_it_is_silent() -> None:
    """A leaf that lost the memory of silence asks for it again."""
    source = opened(log_with({"sb": 5}, 4))
    source.acked(0, ["sb"], 3)
    assert kept(source.answer(nack(2, 5))) == [(2, 5, [4, 5], False)]
    assert kept(source.answer(nack(1, 3))) == [(1, 3, [1], False)]


def test_what_a_limit_forced_out_is_lost_for_who_lacked_it() -> None:
    """And silent for who had it."""
    log = log_with({"sb": 5, "other": 7}, 6)
    source = opened(log)
    source.acks.credit(["sb"], 3)
    log.streams[SPACE].force_out(5)
    assert kept(source.answer(nack(2, 7))) == [(2, 3, [], False), (4, 5, [], True), (6, 7, [6, 7], False)]
    source.acks.credit(["sb"], 5)
    assert kept(source.answer(nack(2, 7))) == [(2, 7, [6, 7], False)]


def test_what_a_limit_forced_out_before_it_was_sent_is_no_silence() -> None:
    """The next run begins behind it, and the leaves ask."""
    log = log_with({"sb": 5}, 6)
    source = opened(log)
    source.sent = 2
    log.streams[SPACE].force_out(5)
    run = source.run(10_000)
    assert run is not None
    assert run.first == 6


def test_a_leaf_without_a_base_gets_all_from_its_vector_change_on() -> None:
    """As a run from number 1: what was before is silent for it."""
    source = opened(log_with({"sb": 1}, 2, {"sb": 2}, 1, {"sb": 3}, 1))
    assert kept(source.answer(nack(0))) == [(1, 7, [4, 5, 6, 7], False)]
    assert kept(source.answer(nack(0, vst=3))) == [(1, 7, [6, 7], False)]


def test_a_leaf_without_a_base_whose_vector_change_was_dropped_gets_what_is_kept() -> None:
    """All had what is gone; the last vector change is kept for what follows."""
    source = opened(log_with({"sb": 2}, 4))
    source.acked(0, ["sb"], 3)
    assert kept(source.answer(nack(0))) == [(1, 5, [1, 4, 5], False)]


def test_a_leaf_whose_start_point_is_not_reached_learns_the_vector() -> None:
    """Then it stops asking."""
    source = opened(log_with({"sb": 2}, 1))
    (tip,) = source.answer(nack(0, vst=9)) or []
    assert (tip.first, tip.last, tip.vector, tip.target) == (3, 2, {"sb": 2}, "sb")


def test_a_leaf_that_is_given_up_is_told_of_its_loss() -> None:
    """It has not acknowledged what is dropped then."""
    log = log_with({"sb": 2, "gone": 3}, 4)
    source = opened(log)
    source.acked(0, ["sb"], 5)
    source.acked(0, ["gone"], 2)
    source.review({"sb": 2}, never, {"gone"})
    source.trim()
    assert kept(source.answer(nack(3, 5, leaf="gone")))[0] == (3, 5, [], True)


def test_a_question_for_the_whole_stream_is_answered_with_how_far_it_has_got() -> None:
    """A leaf that has crashed learns up to where it may have had everything."""
    source = opened(log_with({"sb": 1}, 2, 3))
    source.sent = 3
    (tip,) = source.answer(nack(WHOLE_STREAM, WHOLE_STREAM)) or []
    assert (tip.first, tip.last, tip.target) == (4, 3, "sb")
