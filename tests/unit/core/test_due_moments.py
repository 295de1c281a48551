"""Due times of a holding queue: which are kept individually, which per slot, and the release order."""

from __future__ import annotations

from random import Random

import pytest

from broker.core.queue.due_moments import NEAR_MAX, DueMoments, Moment
from broker.slots.slot import Slot

WINDOW = 1000


class Model:
    """Slots whose messages exist as due times only, and what a queue would do with them."""

    def __init__(self) -> None:
        self.moments = DueMoments()
        self.slots: dict[int, tuple[Slot, set[Moment]]] = {}
        self.next_id = 1
        self.looks = 0
        self.open: Slot | None = None
        self.near_most = 0

    def add(self, due_ms: int) -> None:
        """Publish a message."""
        if self.open is None:
            self.open = Slot(self.next_id)
            self.slots[self.next_id] = (self.open, set())
        slot, ready = self.slots[self.open.first]
        ready.add((due_ms, self.next_id))
        slot.length += 1
        self.moments.add(slot, self.next_id, due_ms)
        self.next_id += 1
        if slot.length == WINDOW:
            slot.move_fill("seal")
            self.open = None

    def restart(self) -> None:
        """Seal the open slot and forget all due times except those on disk."""
        if self.open is not None:
            self.open.move_fill("seal")
            self.open = None
        self.moments = DueMoments()
        for slot, ready in self.slots.values():
            self.moments.begin(slot, ready)

    def take(self, now_ms: int) -> Moment | None:
        """Take the next due message."""
        while (known := self.moments.hidden(now_ms)) is not None:
            self.looks += 1
            self.moments.index(known, self.slots[known.slot.first][1], now_ms)
        self.near_most = max(self.near_most, len(self.moments._near))
        taken = self.moments.take(now_ms)
        if taken is None:
            return None
        due_ms, message_id, slot = taken
        ready = self.slots[slot.first][1]
        ready.discard((due_ms, message_id))
        if not ready and slot is not self.open:
            self.moments.forget(slot)
        return due_ms, message_id


@pytest.mark.parametrize("seed", range(5))
def test_messages_are_taken_in_the_order_of_their_moments(seed: int) -> None:
    """Messages are taken by due time, then by id, also across restarts."""
    random = Random(seed)
    model = Model()
    waiting: set[Moment] = set()
    now_ms = 0
    for _ in range(300):
        for _ in range(random.randrange(40)):
            due_ms = now_ms + random.choice([1, random.randrange(1, 3000), random.randrange(1, 100_000)])
            waiting.add((due_ms, model.next_id))
            model.add(due_ms)
        if random.random() < 0.02:
            model.restart()
        now_ms += random.randrange(500)
        due = sorted(moment for moment in waiting if moment[0] <= now_ms)
        assert [model.take(now_ms) for _ in due] == due
        assert model.take(now_ms) is None
        waiting.difference_update(due)
        assert model.moments.next_ms == min((moment[0] for moment in waiting), default=None)


def test_memory_goes_by_slots_when_each_slot_has_something_due_soon() -> None:
    """With 100,000 due times spread over all slots, few are kept individually, and slots are read rarely."""
    random = Random(1)
    model = Model()
    count = 100 * WINDOW
    for _ in range(count):
        model.add(random.randrange(1, 1_000_000))
    assert len(model.moments._near) == 0
    assert len(model.moments._slots) <= 4 * len(model.slots) + 64
    taken = [model.take(1_000_000) for _ in range(count)]
    assert taken == sorted(moment for moment in taken if moment is not None)
    assert model.near_most <= NEAR_MAX + len(model.slots)
    assert model.looks <= count // (NEAR_MAX // 100) + len(model.slots)


def test_moments_that_only_come_earlier_take_no_more_memory() -> None:
    """Each message is due before all others; the due time that it replaces is forgotten."""
    model = Model()
    for number in range(50 * WINDOW):
        model.add(10_000_000 - number)
    assert len(model.moments._slots) <= 4 * len(model.slots) + 64
