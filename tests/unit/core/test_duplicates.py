"""The memory of a deduplicating queue: as much as its messages need, whatever was in it before."""

from __future__ import annotations

from random import Random

from broker.core.queue.duplicates import CURRENT_MAX, Duplicates, value_digest
from broker.slots.slot import Slot

SLOT = 100


def test_it_knows_what_waits_and_forgets_what_is_gone() -> None:
    """Thousands of values pass while few wait, again and again the same; each answer is exact."""
    random = Random(3)
    known = Duplicates()
    waiting: dict[int, tuple[Slot, int]] = {}
    slot, index = Slot(0), 0
    slot.length = SLOT
    for step in range(20_000):
        value = random.randrange(300) if step % 2 else step
        digest = value_digest(value)
        assert known.knows(digest, 0) == (value in waiting)
        if value not in waiting:
            known.note(digest, slot, index, None, 0)
            waiting[value] = (slot, index)
            index += 1
            if index == SLOT:
                slot, index = Slot(0), 0
                slot.length = SLOT
        if len(waiting) > 50:
            gone, at = waiting.pop(random.choice(list(waiting)))
            gone.acks.settle(at)
        assert len(known._entries) == len(known._order) <= 50 * CURRENT_MAX + 64


def test_a_value_that_expired_is_not_known() -> None:
    """At its moment it is gone, and another type is another value."""
    known = Duplicates()
    known.note(value_digest("1"), Slot(0), 0, 10, 0)
    assert [known.knows(value_digest("1"), now_ms) for now_ms in (9, 10)] == [True, False]
    assert not known.knows(value_digest(1), 0)
