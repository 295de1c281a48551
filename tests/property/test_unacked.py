"""The delivery tags of a channel against a model: one entry per message, whatever is delivered and acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.amqp.errors import ChannelError
from broker.core.queue.unacked import SlotDelivery, Unacked, by_slot
from broker.slots.slot import Slot
from tests.unit.core.room import Room

ROOM = Room()
CLIENT = ROOM.enter()
QUEUES = tuple(ROOM.vhost.queues.declare(name) for name in ("q-0", "q-1"))
STREAMS = tuple(queue.level for queue in QUEUES)
CONSUMERS = tuple(CLIENT.consumer(queue) for queue in QUEUES)
WINDOW = 40  # messages of a slot

Entry = tuple[Any, Slot, int, Any]


def spread_out(deliveries: Sequence[SlotDelivery]) -> list[Entry]:
    """Return single deliveries; their indexes ascend, and are a range when they are dense."""
    entries = []
    for delivery in deliveries:
        indexes = delivery.indexes
        assert len(indexes) == delivery.count > 0
        assert indexes[0] == delivery.start
        assert list(indexes) == sorted(set(indexes))
        assert isinstance(indexes, range) or indexes[-1] - indexes[0] >= len(indexes)
        entries += [(delivery.level, delivery.slot, index, delivery.consumer) for index in indexes]
    return entries


class UnackedMachine(RuleBasedStateMachine):
    """Keeps a dict beside it: delivery tag -> message, in tag order; and another of the tags set aside."""

    def __init__(self) -> None:
        super().__init__()
        self.made = Unacked()
        self.last = 0
        self.waiting: dict[int, Entry] = {}
        self.aside: dict[int, Entry] = {}
        self.late: set[int] = set()
        self.slots = [Slot(1), Slot(1 + WINDOW)]
        self.fresh = [0, 0]

    def _hand_out(self, which: int, indexes: Sequence[int], consumer: Any) -> None:
        slot = self.slots[which]
        self.made.handed_out(STREAMS[which], slot, indexes, consumer)
        for index in indexes:
            self.last += 1
            self.waiting[self.last] = (STREAMS[which], slot, index, consumer)

    @rule(which=st.integers(0, 1), count=st.integers(0, 12), consumer=st.sampled_from(CONSUMERS))
    def hand_out(self, which: int, count: int, consumer: Any) -> None:
        """Deliver messages in the order of the slot."""
        start = self.fresh[which]
        stop = min(start + count, WINDOW)
        self.fresh[which] = stop
        self._hand_out(which, range(start, stop), consumer)
        if stop == WINDOW:
            self.slots[which], self.fresh[which] = Slot(self.slots[which].first + 2 * WINDOW), 0

    @rule(which=st.integers(0, 1), count=st.integers(2, 12), step=st.integers(2, 3))
    def deal_out(self, which: int, count: int, step: int) -> None:
        """Deliver a piece of the slot to two consumers: one gets every second or third message, the other the rest."""
        start = self.fresh[which]
        stop = min(start + count, WINDOW)
        self.fresh[which] = stop
        piece = range(start, stop)
        self._hand_out(which, piece[::step], CONSUMERS[0])
        self._hand_out(which, [index for index in piece if index not in piece[::step]], CONSUMERS[1])

    @rule(which=st.integers(0, 1), count=st.integers(10, WINDOW))
    def deal_out_singly(self, which: int, count: int) -> None:
        """Deliver one message each to two consumers, repeatedly."""
        start = self.fresh[which]
        for index in range(start, min(start + count, WINDOW)):
            self.fresh[which] = index + 1
            self._hand_out(which, [index], CONSUMERS[index % 2])

    @rule(which=st.integers(0, 1))
    def fetch(self, which: int) -> None:
        """Fetch a message with basic.get."""
        index = self.fresh[which]
        if index < WINDOW:
            self.fresh[which] += 1
            self.last += 1
            assert self.made.add(STREAMS[which], self.slots[which], index) == self.last
            self.waiting[self.last] = (STREAMS[which], self.slots[which], index, None)

    @rule(count=st.integers(1, 3))
    def skip(self, count: int) -> None:
        """Use up tags for deliveries without acknowledgement."""
        self.made.last_tag += count
        self.last += count

    @rule(data=st.data(), multiple=st.booleans(), transactional=st.booleans())
    def acknowledge(self, data: st.DataObject, multiple: bool, transactional: bool) -> None:
        """Acknowledge a tag: it names its message, with multiple all earlier ones too, in order; others are refused."""
        anywhere = st.integers(0, self.last + 2)
        tag = data.draw(anywhere if not self.waiting else st.one_of(st.sampled_from(sorted(self.waiting)), anywhere))
        if tag not in self.waiting and tag not in self.late and not (multiple and not tag):
            with pytest.raises(ChannelError, match=f"unknown delivery tag {tag}$") as refused:
                (self.made.set_aside if transactional else self.made.take)(tag, multiple=multiple)
            assert refused.value.reply_code == 406
            return
        named = [waiting for waiting in self.waiting if waiting == tag or (multiple and (not tag or waiting < tag))]
        entries = {name: self.waiting.pop(name) for name in named}
        if transactional:
            assert spread_out(self.made.set_aside(tag, multiple=multiple)) == list(entries.values())
            self.aside.update(entries)
        else:
            assert spread_out(self.made.take(tag, multiple=multiple)) == list(entries.values())

    @rule(newest=st.booleans(), count=st.integers(1, 40), step=st.integers(1, 4))
    def acknowledge_singly(self, newest: bool, count: int, step: int) -> None:
        """Acknowledge some tags individually, from the oldest or from the newest."""
        for tag in sorted(self.waiting, reverse=newest)[::step][:count]:
            assert spread_out(self.made.take(tag, multiple=False)) == [self.waiting.pop(tag)]

    @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS))
    def take_back(self, data: st.DataObject, consumer: Any) -> None:
        """Take back what a consumer holds under the tags up to one; acknowledging these changes nothing."""
        upto = data.draw(st.integers(0, self.last + 1))
        named = [tag for tag, entry in self.waiting.items() if tag <= upto and entry[3] is consumer]
        entries = {tag: self.waiting.pop(tag) for tag in named}
        assert spread_out(self.made.take_back(consumer, upto)) == list(entries.values())
        self.late.update(named)

    @rule()
    def take_all(self) -> None:
        """Take all unacked messages in order, without those set aside; within each slot they ascend."""
        taken = self.made.take_all()
        assert spread_out(taken) == list(self.waiting.values())
        groups: dict[tuple[Any, Slot], list[int]] = {}
        for stream, slot, index, _consumer in self.waiting.values():
            groups.setdefault((stream, slot), []).append(index)
        grouped = [((stream, slot), list(indexes)) for stream, slot, indexes in by_slot(taken)]
        assert grouped == [(place, sorted(indexes)) for place, indexes in groups.items()]
        self.waiting.clear()

    @rule()
    def commit(self) -> None:
        """Commit: what was set aside never waits again."""
        self.made.drop_aside()
        self.aside.clear()

    @rule()
    def roll_back(self) -> None:
        """Roll back: acknowledged messages are unacked again, in their place."""
        self.made.put_back()
        self.waiting = dict(sorted({**self.waiting, **self.aside}.items()))
        self.aside.clear()

    @invariant()
    def tells_what_waits(self) -> None:
        """Check the unacked count, the oldest and the last tag, and the unacked messages of a slot."""
        assert self.made.count == len(self.waiting)
        assert self.made.aside_count == len(self.aside)
        assert self.made.last_tag == self.last
        assert self.made.oldest == min(self.waiting, default=None)
        held = [*self.waiting.values(), *self.aside.values()]
        for slot in self.slots:
            assert self.made.indexes_of(slot) == [index for _, where, index, _ in held if where is slot]


TestUnacked = UnackedMachine.TestCase
TestUnacked.settings = settings(max_examples=100, stateful_step_count=60)


def test_a_transaction_keeps_runs_and_puts_them_back_as_they_were() -> None:
    """A hundred slots that one acknowledgement names are a hundred runs set aside, and the same after a rollback."""
    made = Unacked()
    for number in range(100):
        made.handed_out(STREAMS[0], Slot(1 + number * WINDOW), range(WINDOW), CONSUMERS[0])
    made.set_aside(0, multiple=True)
    assert (made.count, len(made.aside or ()), made.aside_count) == (0, 100, 100 * WINDOW)
    made.put_back()
    assert (made.count, len(made.runs), made.aside_count, made.oldest) == (100 * WINDOW, 100, 0, 1)
    assert not any(run.removed for run in made.runs)


def test_a_rollback_leaves_what_was_acknowledged_after_it_acknowledged() -> None:
    """A message acknowledged outside, between one that comes back and those that wait, does not wait again."""
    made, slot = Unacked(), Slot(1)
    made.handed_out(STREAMS[0], slot, range(5), CONSUMERS[0])
    made.set_aside(1, multiple=False)
    made.take(2, multiple=False)
    made.put_back()
    assert (made.indexes_of(slot), made.oldest) == ([0, 2, 3, 4], 1)
