"""The slot manager against a model: random publishes, leases, acks, requeues, purges and lost owners."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.slots.manager import SlotManager
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
        self.redelivered: set[int] = set()
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
            assert slot.redelivered(message_id - slot.first) == (message_id in self.redelivered)
            self.ready.remove(message_id)
            self.unacked[message_id] = (owner, slot)

    @rule(data=st.data(), what=st.sampled_from(["settle", "requeue", "put_back"]))
    def answer(self, data: st.DataObject, what: str) -> None:
        """Settle, requeue or unsend messages, as consumers do."""
        if not self.unacked:
            return
        message_id = data.draw(st.sampled_from(sorted(self.unacked)))
        _owner, slot = self.unacked.pop(message_id)
        getattr(self.manager, what)(slot, [message_id - slot.first])
        if what != "settle":
            self.ready.add(message_id)
        if what == "requeue":
            self.redelivered.add(message_id)

    @rule(owner=owners)
    def owner_dies(self, owner: Owner) -> None:
        """Lose an owner: its slots return with every message that it was given."""
        slots = self.manager.leased_to(owner)
        lost = {i for i, (_who, slot) in self.unacked.items() if slot in slots}
        assert self.manager.return_all(owner) == len(lost)
        for message_id in lost:
            del self.unacked[message_id]
        self.ready |= lost
        self.redelivered |= lost

    @rule(owner=owners)
    def last_consumer_leaves(self, owner: Owner) -> None:
        """End the leases in order; the unacked messages stay where they are."""
        self.manager.give_back_all(owner)
        assert not self.manager.leased_to(owner)

    @rule()
    def purge(self) -> None:
        """Purge, and check that all ready and no unacked messages are settled."""
        purged = {slot.first + index for slot, indexes in self.manager.purge() for index in indexes}
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


SlotMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestSlotMachine = SlotMachine.TestCase
