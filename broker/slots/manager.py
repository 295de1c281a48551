"""The slot manager of a level: assign message ids, and track their settlement. Workers lease slots from it for
consumers; basic.get, moves and taps take their messages through it too. Messages get consecutive ids when the queue
accepts them, so slots never overlap. A sealed slot is deleted as soon as all its messages are settled. The open slot
can be leased too, so a lone message is delivered at once.
Source: WSO2 Message Broker 3.0.0, "Slot Based Architecture": publish-up-to, get, delete, and the return of slots when
the last subscriber or a node leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from broker.slots.ready_sizes import ReadySizes
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot
from broker.slots.states import Fill, Owner, Tenure


def _ignore(_slot: Slot) -> None:
    """Ignore a slot."""


class SlotManager:
    """Divide the message ids of a level into slots, lease these, and delete each once all its messages are settled.

    Shapes: `slots` maps the first id to its slot, ascending; only the last slot is open.
    Units: `window_messages` and `window_bytes` seal the open slot, whichever is reached first.
    Invariant: every unsettled id lies in exactly one slot; `ready + unacked` is their number. `_current` is the
        slot that `get` returned last, or None once the lease of a lower slot has ended or messages of a lower slot
        were returned.
    """

    __slots__ = ("_current", "_epoch", "_offers", "next_id", "on_delete", "on_open", "open", "ready", "sizes", "slots",
                 "unacked", "window_bytes", "window_messages")  # fmt: skip

    def __init__(
        self,
        window_messages: int = 1000,
        window_bytes: int = 1 << 20,
        *,
        first_id: int = 1,
        on_open: Callable[[Slot], None] = _ignore,
        on_delete: Callable[[Slot], None] = _ignore,
    ) -> None:
        # Compiled code lays attributes out in this order. Those used for every message share few cache lines.
        self.ready = 0
        self.unacked = 0
        self.next_id = first_id  # the end of the open slot; stored, because it is read for each message
        self.open = Slot(first_id)
        self._current: Slot | None = None
        self.window_messages = window_messages
        self.window_bytes = window_bytes
        self.sizes: ReadySizes | None = None
        self.slots = {first_id: self.open}
        self._offers: list[int] = []  # heap of first ids: slots that may have ready messages
        self._epoch = 0
        self.on_open = on_open
        self.on_delete = on_delete

    def ignore_slots(self) -> None:
        """Stop notifications of opened and deleted slots."""
        self.on_open = self.on_delete = _ignore

    def restore(self, next_id: int, slots: Iterable[Slot]) -> None:
        """Add the unsettled slots found by recovery, in ascending order, and continue numbering at `next_id`.

        Invariant: nothing was published before.
        """
        self.slots.clear()
        for slot in slots:
            if slot.unsettled:
                self.slots[slot.first] = slot
                self.ready += slot.ready
                self._offer(slot)
        self.next_id = next_id
        self.open = self._new_slot(next_id)

    def skip_to(self, next_id: int) -> None:
        """Continue numbering at a higher id. Invariant: the open slot is empty."""
        del self.slots[self.open.first]
        self.next_id = next_id
        self.open = self._new_slot(next_id)

    # -- publish ------------------------------------------------------------------------------------------------------

    def append(self, contents: list[Any], charge_bytes: int) -> bool:
        """Append messages to the open slot (publish-up-to); return False if `append_at_border` must append them.

        The first message gets the id `next_id`, the others follow.
        Units: `charge_bytes` is the sum of their charges.
        """
        slot = self.open
        count = len(contents)
        length = slot.length + count
        if (
            length >= self.window_messages
            or slot.bytes + charge_bytes >= self.window_bytes
            or not slot.offered
            or self.sizes is not None
        ):
            return False
        assert slot.contents is not None, "the open slot is always resident"
        slot.contents += contents  # hot: set directly
        slot.length = length  # hot: set directly
        slot.bytes += charge_bytes  # hot: set directly
        self.next_id += count
        self.ready += count
        return True

    def append_one(self, content: Any, charge_bytes: int) -> bool:
        """Append one message as `append` does; return False if `append_at_border` must append it."""
        slot = self.open
        length = slot.length + 1
        if (
            length >= self.window_messages
            or slot.bytes + charge_bytes >= self.window_bytes
            or not slot.offered
            or self.sizes is not None
        ):
            return False
        assert slot.contents is not None, "the open slot is always resident"
        slot.contents.append(content)
        slot.length = length  # hot: set directly
        slot.bytes += charge_bytes  # hot: set directly
        self.next_id += 1
        self.ready += 1
        return True

    def append_at_border(self, contents: list[Any], charges: list[int]) -> None:
        """Append messages that begin or fill a slot, or whose sizes are counted.

        Shapes: one charge, in bytes, per message.
        Cost: a sum and a copy per slot. One step per message where bytes fill a slot, and while sizes are counted.
        """
        at = 0
        count = len(contents)
        while at < count:
            slot = self.open
            stop = min(count, at + self.window_messages - slot.length)
            charge_bytes = sum(charges[at:stop]) if stop - at < count else sum(charges)
            if stop - at > 1 and (slot.bytes + charge_bytes >= self.window_bytes or self.sizes is not None):
                stop = at + 1  # one by one: the slot may become full, and each size is counted
                charge_bytes = charges[at]
            assert slot.contents is not None, "the open slot is always resident"
            slot.contents += contents[at:stop] if stop - at < count else contents  # hot: set directly
            opened = not slot.length
            slot.length += stop - at  # hot: set directly
            slot.bytes += charge_bytes  # hot: set directly
            self.next_id += stop - at
            self.ready += stop - at
            if self.sizes is not None:
                self.sizes.append(slot, contents[at])
            if not slot.offered:
                if opened:
                    self.on_open(slot)
                slot.offered = True  # hot: set directly
                heappush(self._offers, slot.first)
            if slot.length >= self.window_messages or slot.bytes >= self.window_bytes:
                self.seal()
            at = stop

    def seal(self) -> None:
        """Seal the open slot and open the next; an empty slot stays open."""
        slot = self.open
        if not slot.length:
            return
        slot.move_fill("seal")
        self.open = self._new_slot(self.next_id)
        self._delete_if_done(slot)

    def adopt(self, contents: list[Any], charge_bytes: int, returns: Iterable[ReturnRun]) -> Slot:
        """Append a sealed slot with messages leased from a shared store, and return the slot.

        Shapes: at least one message; the first gets the id `next_id`, the others follow. `returns` are the runs that
            may have been delivered before.
        """
        self.seal()
        slot = self.open
        slot.fill_with(contents, charge_bytes, returns)
        self.next_id += slot.length
        self.ready += slot.length
        if self.sizes is not None:
            self.sizes.measure(slot)
        self.on_open(slot)
        self._offer(slot)
        self.seal()
        return slot

    # -- get and return -----------------------------------------------------------------------------------------------

    def get(self, owner: Owner) -> Slot | None:
        """Lease the lowest slot with ready messages that is free, or already leased to `owner`, and return it; or None.

        Cost: O(log n) amortised, n slots with ready messages; plus the slots leased by other owners.
        """
        current = self._current
        if current is not None and current.owner is owner and current.ready:
            return current  # the usual case
        offers = self._offers
        passed: list[int] = []
        found: Slot | None = None
        while offers:
            slot = self.slots.get(offers[0])
            if slot is None or not slot.ready:
                heappop(offers)
                if slot is not None:
                    slot.offered = False  # hot: set directly
                continue
            if slot.owner is None:
                self._epoch += 1
                slot.lease_to(owner, self._epoch)
            elif slot.owner is not owner and slot.owner != owner:
                passed.append(heappop(offers))
                continue
            found = self._current = slot
            break
        for offer in passed:
            heappush(offers, offer)
        return found

    def lease(self, slot: Slot, owner: Owner) -> bool:
        """Lease this slot to `owner` if it is free, and return whether `owner` has the lease."""
        if slot.owner is None:
            self._epoch += 1
            slot.lease_to(owner, self._epoch)
            return True
        return slot.owner is owner or slot.owner == owner

    def after(self, slot: Slot) -> Slot | None:
        """Return the sealed slot that starts where `slot` ends and will be needed next, or None if there is none."""
        following = self.slots.get(slot.end)
        return following if following is not None and following.fill is Fill.SEALED else None

    def take(self, slot: Slot, limit: int) -> Sequence[int]:
        """Take up to `limit` ready messages of a leased slot, as indexes."""
        indexes = slot.take(limit)
        self._less_ready(slot, indexes)
        self.unacked += len(indexes)
        return indexes

    def take_one(self, slot: Slot) -> int:
        """Take the next ready message of a leased slot, and return its index."""
        index = slot.take_one()
        self.ready -= 1
        if self.sizes is not None:
            self.sizes.subtract(slot, (index,))
        self.unacked += 1
        return index

    def front(self) -> Slot | None:
        """Return the slot with the lowest ready message, leased or not, or None. Cost: O(log n) amortised, as `get`."""
        offers = self._offers
        while offers:
            slot = self.slots.get(offers[0])
            if slot is not None and slot.ready:
                return slot
            heappop(offers)
            if slot is not None:
                slot.offered = False  # hot: set directly
        return None

    def pick(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Take messages of a slot out of order, by ascending indexes. Raises: ValueError if one is not ready."""
        slot.pick(indexes)
        self._less_ready(slot, indexes)
        self.unacked += len(indexes)

    def put_back(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Put back messages that were taken but not sent."""
        slot.put_back(indexes)
        self._again_ready(slot, indexes)

    def requeue(self, slot: Slot, indexes: Sequence[int], *, failed: bool) -> None:
        """Make delivered messages ready again, in their old order, before the fresh ones of the slot."""
        slot.requeue(indexes, failed=failed)
        self._again_ready(slot, indexes)

    def end_lease(self, slot: Slot) -> None:
        """End the lease of one slot (WSO2's re-assign when the last subscriber leaves).

        Delivered messages stay with their channels; ready ones are available to the next owner.
        """
        slot.end_lease()
        self._offer(slot)

    def end_leases(self, owner: Owner) -> None:
        """End every lease of `owner`."""
        for slot in self.leased_to(owner):
            self.end_lease(slot)

    def leased_to(self, owner: Owner) -> list[Slot]:
        """List the slots that `owner` leases, ascending."""
        return [slot for slot in self.slots.values() if slot.owner == owner]

    # -- settle and delete --------------------------------------------------------------------------------------------

    def settle(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settle delivered messages, and delete the slot if it is sealed and all its messages are settled."""
        slot.settle(indexes)
        self.unacked -= len(indexes)
        if slot.acks.count == slot.length and slot.fill is Fill.SEALED and slot.tenure is not Tenure.DELETED:
            self._delete(slot)

    def settle_one(self, slot: Slot, index: int) -> None:
        """Settle one message as `settle` does."""
        slot.settle_one(index)
        self.unacked -= 1
        if slot.acks.count == slot.length:
            self._delete_if_done(slot)

    def lose(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settle ready messages of a slot without delivering them, and delete the slot as `settle` does."""
        slot.lose(indexes)
        self._less_ready(slot, indexes)
        self._delete_if_done(slot)

    def clear(self) -> list[list[Any]]:
        """Delete every slot, and return the messages in memory by slot, so that the caller can free them gradually."""
        contents = [slot.contents for slot in self.slots.values() if slot.contents]
        self.seal()
        for slot in list(self.slots.values()):
            if slot is not self.open:
                self._delete(slot)
        self.ready = self.unacked = 0
        if self.sizes is not None:
            self.sizes.clear()
        return contents

    # -- sizes --------------------------------------------------------------------------------------------------------

    @property
    def ready_bytes(self) -> int:
        """The size of the ready messages in slots whose sizes are known; 0 while none are counted."""
        return 0 if self.sizes is None else self.sizes.ready_bytes

    def count_sizes(self, size_of: Callable[[Any], int]) -> list[Slot]:
        """Start to count the bytes of ready messages; return the slots on disk, for which `sizes_known` must follow."""
        sizes = self.sizes = ReadySizes(size_of)
        return [slot for slot in self.slots.values() if not sizes.measure(slot)]

    def count_no_sizes(self) -> None:
        """Stop counting bytes."""
        self.sizes = None
        for slot in self.slots.values():
            slot.note_sizes(None)

    def sizes_known(self, slot: Slot, sizes: Iterable[int]) -> None:
        """Count the ready messages of a slot that was on disk. Shapes: one size per message of the slot."""
        if self.sizes is not None:
            self.sizes.learn(slot, sizes)

    def _new_slot(self, first: int) -> Slot:
        slot = self.slots[first] = Slot(first)
        return slot

    def _offer(self, slot: Slot) -> None:
        current = self._current
        if current is not None and slot.first < current.first:
            self._current = None
        if not slot.offered and slot.ready:
            slot.offered = True  # hot: set directly
            heappush(self._offers, slot.first)

    def _again_ready(self, slot: Slot, indexes: Sequence[int]) -> None:
        self.ready += len(indexes)
        self.unacked -= len(indexes)
        if self.sizes is not None:
            self.sizes.add(slot, indexes)
        self._offer(slot)

    def _less_ready(self, slot: Slot, indexes: Sequence[int]) -> None:
        self.ready -= len(indexes)
        if self.sizes is not None:
            self.sizes.subtract(slot, indexes)

    def _delete_if_done(self, slot: Slot) -> None:
        if slot.fill is Fill.SEALED and slot.tenure is not Tenure.DELETED and not slot.unsettled:
            self._delete(slot)

    def _delete(self, slot: Slot) -> None:
        slot.delete()
        del self.slots[slot.first]
        self.on_delete(slot)
