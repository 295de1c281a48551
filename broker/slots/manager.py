"""The slot manager of one queue: gives message ids out and takes them back (street steps 8 and 13).

Pure. Only workers ask it for messages; nothing else can obtain one. Source: WSO2 Message Broker 3.0.0, "Slot Based
Architecture", the services of the slot manager: publish-up-to, get, delete, re-assign when the last subscriber leaves,
and re-assign when a node leaves. Two things differ from it on purpose: a lone message does not wait for the window
(the prefix of the open slot can be leased at once), and ids are given here, dense and in order, so slots never overlap
and a slot without unsettled messages can go without a safe zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from broker.slots.slot import Fill, Lease, Owner, Slot, Tenure

__all__ = ["SlotManager"]


def _ignore(_slot: Slot) -> None:
    """Nobody listens."""


class SlotManager:
    """Cuts a queue's ids into slots, leases them, and deletes them when every id is settled.

    Shapes: ``slots`` maps the first id to its slot, ascending; exactly one is open and it is the last.
    Units: ``window_messages`` and ``window_bytes`` seal the open slot, whichever is reached first.
    Invariant: every unsettled id lies in exactly one slot; ``ready + unacked`` is their number.
    """

    __slots__ = (
        "_epoch",
        "_offers",
        "on_delete",
        "on_open",
        "open",
        "ready",
        "slots",
        "unacked",
        "window_bytes",
        "window_messages",
    )

    def __init__(
        self,
        window_messages: int = 1000,
        window_bytes: int = 1 << 20,
        *,
        first_id: int = 1,
        on_open: Callable[[Slot], None] = _ignore,
        on_delete: Callable[[Slot], None] = _ignore,
    ) -> None:
        self.window_messages = window_messages
        self.window_bytes = window_bytes
        self.on_open = on_open
        self.on_delete = on_delete
        self.ready = 0
        self.unacked = 0
        self.slots: dict[int, Slot] = {}
        self._offers: list[int] = []  # heap of first ids: slots that may have ready messages
        self._epoch = 0
        self.open = self._new_slot(first_id)

    @property
    def next_id(self) -> int:
        """The id that the next message gets."""
        return self.open.end

    def restore(self, next_id: int, slots: Iterable[Slot]) -> None:
        """Takes the sealed slots that recovery found, ascending, and goes on numbering at `next_id`.

        Invariant: nothing was published before.
        """
        self.slots.clear()
        for slot in slots:
            if slot.unsettled:
                self.slots[slot.first] = slot
                self.ready += slot.ready
                self._offer(slot)
        self.open = self._new_slot(next_id)

    # -- publish ------------------------------------------------------------------------------------------------------

    def publish(self, content: Any, charge_bytes: int) -> int:
        """Puts one message at the end of the open slot and returns its id (publish-up-to, one at a time).

        Cost: O(1); the slot is sealed when the window is full.
        """
        slot = self.open
        message_id = slot.first + slot.length
        slot.contents.append(content)  # type: ignore[union-attr]  # the open slot is always resident
        slot.length += 1
        slot.bytes += charge_bytes
        self.ready += 1
        if not slot.offered:
            if slot.length == 1:
                self.on_open(slot)
            slot.offered = True
            heappush(self._offers, slot.first)
        if slot.length >= self.window_messages or slot.bytes >= self.window_bytes:
            self.seal()
        return message_id

    def seal(self) -> None:
        """Seals the open slot and opens the next; an empty one stays open."""
        slot = self.open
        if not slot.length:
            return
        slot.move_fill("seal")
        self.open = self._new_slot(slot.end)
        self._delete_if_done(slot)

    # -- get and return -----------------------------------------------------------------------------------------------

    def get(self, owner: Owner) -> Slot | None:
        """Leases the lowest slot with ready messages to `owner`, or finds it leased to them already.

        The open slot counts too: its prefix is handed out at once.
        Cost: O(log n) amortised, n slots with ready messages; plus the slots that other owners hold.
        """
        offers = self._offers
        passed: list[int] = []
        found: Slot | None = None
        while offers:
            slot = self.slots.get(offers[0])
            if slot is None or not slot.ready:
                heappop(offers)
                if slot is not None:
                    slot.offered = False
                continue
            if slot.lease is None:
                self._epoch += 1
                slot.move_tenure("lease")
                slot.lease = Lease(owner, self._epoch)
            elif slot.lease.owner != owner:
                passed.append(heappop(offers))
                continue
            found = slot
            break
        for first in passed:
            heappush(offers, first)
        return found

    def after(self, slot: Slot) -> Slot | None:
        """Returns the sealed slot that starts where `slot` ends, if there is one: what will be asked for next."""
        following = self.slots.get(slot.end)
        return following if following is not None and following.fill is Fill.SEALED else None

    def take(self, slot: Slot, limit: int) -> Sequence[int]:
        """Hands out up to `limit` ready messages of a leased slot, as indexes."""
        indexes = slot.take(limit)
        taken = len(indexes)
        self.ready -= taken
        self.unacked += taken
        return indexes

    def put_back(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Takes back messages that were taken and not sent."""
        slot.put_back(indexes)
        self._again_ready(slot, len(indexes))

    def requeue(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Takes back messages that a consumer had; they come before everything fresh, in their old order."""
        slot.requeue(indexes)
        self._again_ready(slot, len(indexes))

    def give_back(self, slot: Slot) -> None:
        """Ends the lease of one slot (WSO2's re-assign when the last subscriber leaves).

        What was handed out stays with the channels that have it; the rest is for the next who asks.
        """
        slot.move_tenure("give_back")
        slot.lease = None
        self._offer(slot)

    def give_back_all(self, owner: Owner) -> int:
        """Ends every lease of `owner` in good order (its last consumer left); returns how many."""
        held = self.leased_to(owner)
        for slot in held:
            self.give_back(slot)
        return len(held)

    def return_all(self, owner: Owner) -> int:
        """Ends every lease of an owner that is gone; what it had handed out is ready again. Returns how many
        messages.
        """
        lost = 0
        for slot in self.leased_to(owner):
            lost += self.recall(slot)
            self.give_back(slot)
        return lost

    def recall(self, slot: Slot) -> int:
        """Makes the unacked messages of one slot ready again; returns how many."""
        lost = slot.recall()
        self.ready += lost
        self.unacked -= lost
        self._offer(slot)
        return lost

    def leased_to(self, owner: Owner) -> list[Slot]:
        """Lists the slots that `owner` leases, ascending."""
        return [slot for slot in self.slots.values() if slot.lease is not None and slot.lease.owner == owner]

    # -- settle and delete --------------------------------------------------------------------------------------------

    def settle(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settles messages that were handed out; the slot goes when it is sealed and nothing is left of it."""
        slot.settle(indexes)
        self.unacked -= len(indexes)
        if slot.acks.count == slot.length:
            self._delete_if_done(slot)

    def lose(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settles ready messages of a slot that cannot be read any more."""
        slot.lose(indexes)
        self.ready -= len(indexes)
        self._delete_if_done(slot)

    def purge(self) -> list[tuple[Slot, list[int]]]:
        """Settles every ready message of every slot; returns (slot, indexes) for each slot that lost some."""
        purged: list[tuple[Slot, list[int]]] = []
        for slot in list(self.slots.values()):
            if slot.ready:
                purged.append((slot, slot.purge()))
                self._delete_if_done(slot)
        self.ready = 0
        return purged

    def clear(self) -> None:
        """Deletes every slot whatever it holds: the queue is being deleted."""
        self.seal()
        for slot in list(self.slots.values()):
            if slot is not self.open:
                self._delete(slot)
        self.ready = 0
        self.unacked = 0

    def _new_slot(self, first: int) -> Slot:
        slot = self.slots[first] = Slot(first)
        return slot

    def _offer(self, slot: Slot) -> None:
        if not slot.offered and slot.ready:
            slot.offered = True
            heappush(self._offers, slot.first)

    def _again_ready(self, slot: Slot, count: int) -> None:
        self.ready += count
        self.unacked -= count
        self._offer(slot)

    def _delete_if_done(self, slot: Slot) -> None:
        if slot.fill is Fill.SEALED and slot.tenure is not Tenure.DELETED and not slot.unsettled:
            self._delete(slot)

    def _delete(self, slot: Slot) -> None:
        slot.move_tenure("delete")
        slot.lease = None
        slot.contents = None
        del self.slots[slot.first]
        self.on_delete(slot)
