"""Slots: both state machines, and which messages are delivered, returned and settled."""

from __future__ import annotations

import pytest

from broker.slots.acks import Acks
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.slots.states import TENURE_MOVES, Fill, IllegalMove, Tenure


def filled(count: int) -> Slot:
    """Return an open slot with `count` messages."""
    slot = Slot(1)
    assert slot.contents is not None
    slot.contents.extend(f"m{n}" for n in range(count))
    slot.length = count
    return slot


def test_a_slot_is_sealed_once() -> None:
    """A slot is sealed once and never opened again."""
    slot = filled(1)
    slot.move_fill("seal")
    for event in ("seal", "unseal"):
        with pytest.raises(IllegalMove):
            slot.move_fill(event)
        assert slot.fill is Fill.SEALED


@pytest.mark.parametrize(
    ("state", "event", "expected"),
    [
        (Tenure.FREE, "lease", Tenure.LEASED),
        (Tenure.FREE, "end_lease", None),
        (Tenure.FREE, "delete", Tenure.DELETED),
        (Tenure.LEASED, "lease", None),
        (Tenure.LEASED, "end_lease", Tenure.FREE),
        (Tenure.LEASED, "delete", Tenure.DELETED),
        (Tenure.DELETED, "lease", None),
        (Tenure.DELETED, "end_lease", None),
        (Tenure.DELETED, "delete", None),
    ],
)
def test_tenure_moves(state: Tenure, event: str, expected: Tenure | None) -> None:
    """A slot has one owner at a time, and none after its deletion."""
    slot = filled(1)
    slot.tenure = state
    if expected is None:
        with pytest.raises(IllegalMove):
            slot.move_tenure(event)
    else:
        slot.move_tenure(event)
        assert slot.tenure is expected
    assert len(TENURE_MOVES) == 4


@pytest.mark.parametrize("settled", [range(2), range(2, 4), range(4, 6), range(6), [1, 3, 4], [5]], ids=str)
def test_a_part_of_a_slot_is_settled_and_released(settled: range | list[int]) -> None:
    """Settling any part of a slot releases exactly its messages."""
    slot = filled(6)
    slot.take(6)
    slot.requeue([1, 3, 5], failed=True)
    slot.take(3)
    slot.settle(settled)
    left = [index for index in range(6) if index not in settled]
    assert slot.contents == [f"m{index}" if index in left else None for index in range(6)]
    assert slot.unacked() == left


def test_recovered_slot_skips_what_was_settled() -> None:
    """Settled messages of a recovered slot are not delivered; all others count as redelivered."""
    settled = Acks()
    settled.settle_all([0, 3])
    slot = Slot.restored(100, 6, settled.to_bytes(), [], {7}, charge_bytes=60, recovered=True)
    assert slot.ready == slot.unsettled == 4
    assert list(slot.take(2)) == [1, 2]
    assert list(slot.take(9)) == [4, 5]
    assert slot.ready == 0
    assert all(slot.redelivered(index) for index in (1, 2, 4, 5))
    assert not slot.resident


def test_recovered_bits_end_with_the_slot() -> None:
    """A recovered bitmap has no more places than the slot has messages, whatever its padding."""
    slot = Slot.restored(1, 3, b"\xff", [], set(), charge_bytes=0, recovered=False)
    assert (slot.acks.to_bytes(), slot.acks.count, slot.unsettled, slot.ready) == (b"\x07", 3, 0, 0)


def test_settling_twice_is_a_defect() -> None:
    """Settling a message again raises, individually or in a range."""
    acks = Acks()
    acks.settle_all(range(2, 5))
    for again in (range(4, 6), [3]):
        with pytest.raises(ValueError, match="already settled"):
            acks.settle_all(again)
    assert acks.count == 3
    assert list(acks.unsettled(0, 7)) == [0, 1, 5, 6]


def test_a_range_of_the_newest_messages_is_fresh_again() -> None:
    """The newest messages in one piece leave nothing behind but their counts, whatever came back before them."""
    slot = filled(6)
    slot.take(6)
    slot.requeue([1], failed=True)
    slot.requeue(range(3, 6), failed=True)
    assert (slot.cursor, slot.returned_count) == (3, 1)
    assert list(slot.take(9)) == [1]
    assert slot.take(9) == range(3, 6)
    slot.requeue(range(6), failed=True)
    assert (slot.cursor, slot.returned, slot.ready) == (0, None, 6)
    assert slot.returns_of(range(6)) == [
        ReturnRun(0, 1, 1, 1),
        ReturnRun(1, 2, 2, 2),
        ReturnRun(2, 3, 1, 1),
        ReturnRun(3, 6, 2, 2),
    ]


def test_front_lists_what_take_would_hand_out() -> None:
    """Returned messages come first, then fresh ones without the settled; listing hands nothing out."""
    slot = Slot(1)
    slot.length = 6
    slot.contents = list("abcdef")
    slot.take(3)
    slot.settle([0])
    slot.requeue([1], failed=True)
    assert list(slot.front(5)) == [1]
    slot.take(1)
    slot.lose([4])
    assert slot.front(5) == [3, 5]
    assert list(slot.take(5)) == [3, 5]


def test_what_is_not_ready_cannot_be_picked() -> None:
    """A settled, an unacked and an unknown message cannot be picked."""
    slot = Slot(1)
    slot.length = 4
    slot.contents = list("abcd")
    slot.take(1)
    slot.lose([2])
    for index in (0, 2, 9):
        with pytest.raises(ValueError, match="not"):
            slot.pick([index])
    assert slot.ready == 2
    slot.take(1)
    slot.put_back([0])
    with pytest.raises(ValueError, match="not"):
        slot.pick([1])
    assert slot.ready == 2


class CountedIndex(int):
    """An index that counts how often an index is compared for equality."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        """Compare, and count."""
        CountedIndex.compared += 1
        return int(self) == other


def test_picking_many_messages_compares_each_index_a_few_times() -> None:
    """After a restart hundreds of returned messages of a slot may be picked from among fresh ones."""
    slot = filled(511)
    slot.pick([CountedIndex(index) for index in range(0, 511, 2)])
    assert list(slot.take(511)) == list(range(1, 511, 2))
    assert CountedIndex.compared <= 2 * 511


def test_what_a_slot_notes_is_its_own() -> None:
    """Returned messages, counts of returns and segments of one slot are in no other, however it got them."""
    used, doubted = filled(4), filled(4)
    used.take(3)
    used.put_back([0])
    used.requeue([1], failed=True)
    used.add_segment(7)
    doubted.doubt(2)
    assert (used.ready_indexes(), used.returns_of(range(4)), used.segments) == ([0, 1, 3], [ReturnRun(1, 2, 1, 1)], {7})
    assert doubted.returns_of(range(4)) == [ReturnRun(1, 4, 0, 0)]
    assert [doubted.redelivered(index) for index in range(4)] == [False, True, True, True]
    fresh = filled(1)
    assert (fresh.returned, fresh.redeliveries, fresh.segments) == (None, None, set())
