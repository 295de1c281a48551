"""The slot manager against a model: random publishes, leases, acks, requeues and purges."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.slots.manager import SlotManager
from broker.slots.redeliveries import Redeliveries
from broker.slots.slot import Slot
from broker.slots.states import Owner

OWNERS = (Owner("a", "1"), Owner("a", "2"), Owner("b", "1"))
owners = st.sampled_from(OWNERS)


class SlotMachine(RuleBasedStateMachine):
    """Keeps three sets of ids beside the manager: ready, unacked (by owner) and settled."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[Slot] = []
        self.manager = SlotManager(3, 50, on_delete=self.deleted.append)
        self.ready: set[int] = set()
        self.returns: dict[int, tuple[int, int]] = {}
        self.unacked: dict[int, tuple[Owner, Slot]] = {}
        self.last = 0

    @rule(count=st.integers(1, 5), size=st.integers(1, 40))
    def append(self, count: int, size: int) -> None:
        """Append messages and check that ids are dense, whatever their sizes do to the window."""
        for _ in range(count):
            self.last += 1
            assert self.manager.next_id == self.last
            if not self.manager.append([self.last], size):
                self.manager.append_at_border([self.last], [size])
            self.ready.add(self.last)

    @rule()
    def seal(self) -> None:
        """Seal the open slot, which may happen at any time."""
        self.manager.seal()

    @rule(owner=owners, limit=st.integers(1, 6))
    def take(self, owner: Owner, limit: int) -> None:
        """Take messages, and check that they are the lowest ready ones, ascend, and skip only leased slots."""
        slot = self.manager.get(owner)
        hidden = {
            s.first + i for s in self.manager.slots.values() if s.owner and s.owner != owner for i in range(s.length)
        }
        if slot is None:
            assert self.ready <= hidden
            return
        ids = [slot.first + index for index in self.manager.take(slot, limit)]
        assert ids[0] == min(self.ready - hidden)
        assert ids == sorted(ids)
        for message_id in ids:
            assert message_id in self.ready
            assert slot.contents is not None
            assert slot.contents[message_id - slot.first] == message_id
            assert slot.redelivered(message_id - slot.first) == (message_id in self.returns)
            self.ready.remove(message_id)
            self.unacked[message_id] = (owner, slot)

    @rule(data=st.data(), what=st.sampled_from(["settle", "return", "fail", "put_back"]))
    def answer(self, data: st.DataObject, what: str) -> None:
        """Settle, requeue or unsend messages, as consumers do."""
        if not self.unacked:
            return
        first = data.draw(st.sampled_from(sorted(self.unacked)))
        slot = self.unacked[first][1]
        held = [message_id for message_id in sorted(self.unacked) if self.unacked[message_id][1] is slot]
        some = held[held.index(first) : held.index(first) + data.draw(st.integers(1, 3))]
        indexes = [message_id - slot.first for message_id in some]
        is_dense = indexes[-1] - indexes[0] == len(indexes) - 1
        span = range(indexes[0], indexes[-1] + 1) if is_dense else indexes
        if what in ("return", "fail"):
            self.manager.requeue(slot, span, failed=what == "fail")
        else:
            getattr(self.manager, what)(slot, span)
        for message_id in some:
            del self.unacked[message_id]
            if what != "settle":
                self.ready.add(message_id)
            if what in ("return", "fail"):
                acquired, delivered = self.returns.get(message_id, (0, 0))
                self.returns[message_id] = (acquired + 1, delivered + (what == "fail"))

    @rule(data=st.data())
    def pick(self, data: st.DataObject) -> None:
        """Hand out one certain ready message, as a move does."""
        if self.ready:
            message_id = data.draw(st.sampled_from(sorted(self.ready)))
            slot = next(one for one in self.manager.slots.values() if one.first <= message_id < one.end)
            self.manager.pick(slot, [message_id - slot.first])
            self.ready.remove(message_id)
            self.unacked[message_id] = (OWNERS[0], slot)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Lose some ready messages of one slot, as when they cannot be read."""
        slots = [slot for slot in self.manager.slots.values() if slot.ready]
        if slots:
            slot = data.draw(st.sampled_from(slots))
            ready = slot.ready_indexes()
            lost = ready[data.draw(st.integers(0, len(ready) - 1)) :]
            self.manager.lose(slot, lost)
            self.ready -= {slot.first + index for index in lost}

    @rule(owner=owners)
    def last_consumer_leaves(self, owner: Owner) -> None:
        """End the leases in order; the unacked messages stay where they are."""
        self.manager.end_leases(owner)
        assert not self.manager.leased_to(owner)

    @rule()
    def purge(self) -> None:
        """Purge, and check that all ready and no unacked messages are settled."""
        purged = set()
        for slot in list(self.manager.slots.values()):
            if slot.ready:
                purged |= {slot.first + index for index in slot.ready_indexes()}
                self.manager.lose(slot, slot.ready_indexes())
        assert purged == self.ready
        self.ready.clear()

    @invariant()
    def each_id_is_in_one_place(self) -> None:
        """Check that an unsettled id is in exactly one slot, that empty slots are deleted, and the counts."""
        manager = self.manager
        unsettled = [
            slot.first + i for slot in manager.slots.values() for i in range(slot.length) if i not in slot.acks
        ]
        assert sorted(unsettled) == sorted(self.ready | self.unacked.keys())
        assert manager.ready == len(self.ready) == sum(slot.ready for slot in manager.slots.values())
        assert manager.unacked == len(self.unacked)
        assert all(slot.unsettled or slot is manager.open for slot in manager.slots.values())
        assert not any(slot.unsettled for slot in self.deleted)

    @invariant()
    def each_return_is_counted(self) -> None:
        """Check which messages each slot says are ready and unacked, and how often each came back."""
        for slot in self.manager.slots.values():
            ids = range(slot.first, slot.end)
            assert [slot.first + index for index in slot.ready_indexes()] == [i for i in ids if i in self.ready]
            assert [slot.first + index for index in slot.unacked()] == [i for i in ids if i in self.unacked]
            runs = slot.returns_of(range(slot.length))
            counts = {slot.first + i: (run.acquired, run.delivered) for run in runs for i in range(run.first, run.end)}
            assert counts == {i: self.returns[i] for i in ids if i in self.returns}
            for message_id, count in counts.items():
                index = message_id - slot.first
                assert count == (slot.acquired_count(index), slot.delivery_count(index))
            read = Redeliveries()
            for run in runs:
                read.put(run)
            assert read.runs(range(slot.length)) == runs


SlotMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestSlotMachine = SlotMachine.TestCase
