"""Shared levels: this node's part of the levels that several brokers share.

The slot manager of a shared level has only the messages leased to this node. Each of its slots is a part of one slot of
the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from bitarray import bitarray

from broker.cluster.batch import GatheringBatch, Share
from broker.cluster.demand import Demand
from broker.cluster.shared_slot import NEVER, Returned, SharedSlot, SlotPlace, UnsavedSettlements, message_id
from broker.core.message.message import Message
from broker.core.queue.level import Level
from broker.core.queue.level_owner import NO_QUEUE, LevelOwner
from broker.core.queue.ports import QueuePorts
from broker.slots.redeliveries import ReturnRun
from broker.slots.slot import Slot, single
from broker.slots.states import Tenure
from broker.store.record import QUEUE_NUMBERS

BRIEF_MS: Final = 1000  # a message with a time to live of 0 waits this long for consumers of another node


class SharedLevels:
    """The shared levels of a node by number, the current batch, and the touched levels. Shapes: ``ahead`` is cleared
    while accepted messages must not be delivered before their commit. Invariant: ``has_work`` is set while a check of
    the batch and the touched levels is scheduled.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` schedules a check in a later step of the loop."""
        self._wake = wake
        self.ahead = True
        self.batch = GatheringBatch()
        self.running: GatheringBatch | None = None  # the batch whose call is running
        self.unsaved = UnsavedSettlements()
        self.by_number: dict[int, SharedLevel] = {}
        self.has_work = False
        self.touched: dict[SharedLevel, None] = {}

    @contextmanager
    def not_ahead(self) -> Iterator[None]:
        """Return a context in which accepted messages are not delivered before their commit."""
        before, self.ahead = self.ahead, False
        try:
            yield
        finally:
            self.ahead = before

    def find(self, number: int) -> SharedLevel | None:
        """Return a level by its number, or None; create it if its queue exists and another node used it first."""
        level = self.by_number.get(number)
        if level is None and (lowest := self.by_number.get(number & QUEUE_NUMBERS)) is not None:
            lowest.queue.level_numbered(number)
            level = self.by_number.get(number)
        return level

    def schedule(self) -> None:
        """Schedule a check, because work was collected."""
        if not self.has_work:
            self.has_work = True
            self._wake()

    def touch(self, level: SharedLevel) -> None:
        """Record that messages of a level may have to be leased or returned."""
        if level not in self.touched:
            self.touched[level] = None
            if not self.has_work:
                self.schedule()

    def take_touched(self) -> list[SharedLevel]:
        """Begin a check, and return the levels touched since the previous check began."""
        self.has_work = False
        touched, self.touched = self.touched, {}
        return list(touched)

    def gathers(self, number: int) -> bool:
        """Return whether free messages of a level are in the current batch or the running call."""
        for batch in (self.batch, self.running):
            if batch is not None:
                share = batch.shares.get(number)
                if share is not None and share.free.any():
                    return True
        return False

    def next_batch(self) -> GatheringBatch:
        """Begin a new batch, and return the collected one; seal the local slots of its messages."""
        batch, self.batch = self.batch, GatheringBatch()
        self.running = batch
        for number in batch.shares:
            level = self.by_number.get(number)
            if level is not None:
                level.manager.seal()
        return batch

    def drop_batch(self) -> None:
        self.batch = GatheringBatch()

    def call_ended(self) -> None:
        self.running = None


class SharedLevel(Level):
    """One level of a queue that several brokers share.

    Shapes: ``lasting`` messages survive a crash of the database. ``elsewhere`` is set while only a consumer of another
        node may get messages. ``damaged`` are leased but unreadable messages, by the number of their slot. ``dated`` is
        set once a message that is delayed or expires has been published through this node.
    """

    __slots__ = ("_accepted", "_counter", "_indexes", "_levels", "_opening", "_places", "_shift", "damaged", "dated",
                 "demand", "elsewhere", "lasting")  # fmt: skip

    def __init__(
        self, queue: LevelOwner, level: int, number: int, ports: QueuePorts[Level, Any], levels: SharedLevels
    ) -> None:
        super().__init__(queue, level, number, ports)
        self.lasting = self.durable
        self.durable = False  # this node's log has none of the messages, which are in the database
        self.persists_all = False
        self._counter = number & QUEUE_NUMBERS if queue.strict else number - level
        self._levels = levels
        self._places: dict[int, SlotPlace] = {}  # by the first id of the local slot
        self._opening: SharedSlot | None = None  # the database slot of the messages that are being appended
        self._shift = 0
        self._accepted = 0
        self._indexes: list[int] | None = None
        self.damaged: dict[int, bitarray] = {}
        self.dated = False
        self.demand = Demand()
        self.elsewhere = False
        levels.by_number[number] = self

    @property
    def published(self) -> int:
        """The number of messages that have entered the level through this node since it started."""
        return self._accepted

    def message_id(self, slot: Slot, index: int) -> int:
        """Return the cluster-wide id of a message, complete once its call is answered; 0 if it is no longer leased."""
        place = self._places.get(slot.first)
        if place is None:
            return 0
        return message_id(place.slot.number, place.indexes_of(slot, (index,))[0])

    # -- arriving messages --------------------------------------------------------------------------------------------

    def accept(
        self, batch: GatheringBatch, messages: list[Message], first: int, size_bytes: int, due_ms: int, ahead: bool
    ) -> None:
        """Add messages, which are in the chunk of a batch from record `first` on, to the share of the level. HOT.

        With `ahead`, messages for which consumers here have room are leased to this node and delivered at once, unless
        they are delayed, older ones may be free, the queue has limits, or only another node may deliver.
        """
        share = batch.share(self.number, self._counter)
        count = len(messages)
        self._accepted += count
        mine = 0
        if self.queue.rules.limited:
            share.send_sizes()  # PostgreSQL decides which messages it accepts
        elif (
            ahead
            and self._levels.ahead
            and not (self.demand.backlog or due_ms or self.elsewhere)
            and self.queue.consumers.present
        ):
            mine = min(count, self.room(count))
        if due_ms or self.queue.rules.ttl_ms is not None or messages[0].facts.expiration_ms is not None:
            self._note_due(share, messages, due_ms)
        before = share.slot.count
        share.add(first, count, mine, size_bytes)
        if mine < count:
            self.demand.note_backlog()
        if mine:
            self._opening = share.slot
            self._shift = before - self.manager.next_id
            self._indexes = None
            self.append(messages if mine == count else messages[:mine])
        if not self._levels.has_work:
            self._levels.schedule()

    def _note_due(self, share: Share, messages: list[Message], due_ms: int) -> None:
        """Record when the keeper must check the share, because the first of its messages is due or expires."""
        self.dated = True
        rules = self.queue.rules
        for place, message in enumerate(messages):
            if due_ms:
                share.note_due(due_ms)
                continue
            life_ms = message.facts.expiration_ms
            if life_ms is None or (rules.ttl_ms is not None and rules.ttl_ms < life_ms):
                life_ms = rules.ttl_ms
            if life_ms:
                share.note_due(message.timestamp_ms + life_ms)
            elif life_ms == 0:
                share.note_due(message.timestamp_ms + BRIEF_MS)
                if rules.dead_letter_exchange is None:
                    share.brief.append(share.slot.count + place)

    def adopt(
        self,
        slot: SharedSlot,
        indexes: list[int],
        messages: list[Message],
        counts: Mapping[int, Sequence[int]],
        seen: bitarray | None,
    ) -> None:
        """Add messages leased to this node, at least one.

        Shapes: `indexes` are those of the `messages` in the slot; they ascend. `counts` are `Counts` by index, `seen`
            marks the messages of the slot that may have been delivered before.
        """
        if self.deleted:
            return
        manager = self.manager
        manager.seal()
        self._opening = slot
        dense = indexes[-1] - indexes[0] == len(indexes) - 1
        self._indexes = None if dense else indexes
        self._shift = indexes[0] - manager.next_id
        returns: list[ReturnRun] = []
        if counts or seen is not None:
            for place, index in enumerate(indexes):
                if index in counts or (seen is not None and seen[index]):
                    acquired, delivered = counts.get(index, NEVER)
                    returns.append(ReturnRun(place, place + 1, acquired, delivered))
        charge_bytes = sum([message.charge for message in messages])
        self.demand.arrived(charge_bytes)
        queue = self.queue
        adopted = manager.adopt(messages, charge_bytes, returns)
        if returns and (again := adopted.ready_again()):
            queue.note_returned(self.priority, adopted, again)
        if queue.consumers.present and not queue.awake:
            queue.wake_worker()

    def set_elsewhere(self, elsewhere: bool) -> None:
        self.elsewhere = elsewhere

    def keep_damaged(self, number: int, bits: bitarray) -> None:
        """Keep unreadable messages leased, so that none is lost."""
        known = self.damaged.get(number)
        self.damaged[number] = bits if known is None else known | bits

    def room(self, wanted: int) -> int:
        """Return how many more messages the consumers of this node can take now, at most `wanted`."""
        queue = self.queue
        ready = queue.ready
        return max(0, queue.consumers.room(wanted + ready) - ready)

    # -- settling and returning messages ------------------------------------------------------------------------------

    def settle(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settle delivered messages; the next call settles them in the database. HOT."""
        if self.deleted or slot.tenure is Tenure.DELETED:
            return
        self._mark(slot, indexes)
        self.manager.settle(slot, indexes)
        self.demand.settled(len(indexes))
        self._levels.touch(self)

    def settle_one(self, slot: Slot, index: int) -> None:
        self.settle(slot, single(index))

    def dead_letter_unleased(self, message: Message, reason: str) -> None:
        """Dead-letter a message that is not leased to the level: refused by a full queue, or dropped by the keeper."""
        self._ports.dead_letter(self.queue, message, reason)

    def requeue(self, slot: Slot, indexes: Sequence[int], *, failed: bool) -> None:
        """Requeue messages in their place; they are returned to the database if this node has no room for them."""
        if self.deleted or slot.tenure is Tenure.DELETED:
            return
        if slot.first not in self._places:  # it is no longer leased to this node
            self.manager.settle(slot, indexes)
            return
        super().requeue(slot, indexes, failed=failed)
        self._levels.touch(self)

    def lose(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settle ready messages without delivering them."""
        self._mark(slot, indexes)
        self.manager.lose(slot, indexes)

    def delete(self) -> None:
        """Drop all messages here; the rows in the database are deleted once no node uses the queue."""
        super().delete()
        self._places.clear()
        self._levels.by_number.pop(self.number, None)
        self._levels.touch(self)  # a fetch may wait for the level

    def disown(self) -> None:
        """Clear the reference to the queue, because it is deleted."""
        self.queue = NO_QUEUE

    def surrender(self, count: int) -> list[Returned]:
        """Release the last `count` ready messages, and return those to be freed. Messages in the current batch become
        free with its call; messages in the running call, and all before them, stay.
        """
        returned: list[Returned] = []
        for slot in reversed(list(self.manager.slots.values())):
            if count <= 0:
                break
            place = self._places.get(slot.first)
            if not slot.ready or place is None:
                continue
            share = self._levels.batch.shares.get(self.number)
            gathers = share is not None and share.slot is place.slot
            if not gathers and not place.slot.number:
                break
            if gathers and slot.redeliveries is not None:
                break
            indexes = slot.ready_indexes()[-count:]
            count -= len(indexes)
            shared = place.indexes_of(slot, indexes)
            if gathers and share is not None:
                share.release(shared)
            else:
                one = Returned(place.slot)
                for index, known in zip(indexes, shared, strict=True):
                    one.bits[known] = 1
                    if slot.redelivered(index):
                        one.seen[known] = 1
                        if acquired := slot.acquired_count(index):
                            one.counts[known] = (acquired, slot.delivery_count(index))
                returned.append(one)
            self.manager.lose(slot, indexes)
        return returned

    def forget(self) -> None:
        """Drop all leased messages, because the epoch has ended and other nodes may lease them."""
        self._release_all()
        self._places.clear()
        self.damaged.clear()
        self.demand.forget()

    # -- the slots of the database ------------------------------------------------------------------------------------

    def held(self) -> dict[int, bitarray]:
        """Return the unsettled messages leased to this node, by the number of their slot."""
        found = {number: bits.copy() for number, bits in self.damaged.items()}
        for slot in self.manager.slots.values():
            place = self._places.get(slot.first)
            if place is None or not place.slot.number:
                continue
            bits = found.get(place.slot.number)
            if bits is None:
                bits = found[place.slot.number] = bitarray(place.slot.count, "big")
            for index in place.indexes_of(slot, list(slot.acks.unsettled(0, slot.length))):
                bits[index] = 1
        return found

    def drop(self, number: int, bits: bitarray) -> int:
        """Drop the ready messages of a slot that are no longer leased to this node, and return their number."""
        dropped = 0
        for slot in list(self.manager.slots.values()):
            place = self._places.get(slot.first)
            if place is None or place.slot.number != number:
                continue
            ready = slot.ready_indexes()
            gone = [index for index, known in zip(ready, place.indexes_of(slot, ready), strict=True) if bits[known]]
            dropped += len(gone)
            self.manager.lose(slot, gone)
        return dropped

    def refuse(self, shared: SharedSlot) -> None:
        """Drop the ready messages of a slot that the database refused."""
        for slot in list(self.manager.slots.values()):
            place = self._places.get(slot.first)
            if place is not None and place.slot is shared:
                self.manager.lose(slot, slot.ready_indexes())

    def _mark(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Mark messages of a local slot as settled in the current batch. HOT."""
        place = self._places.get(slot.first)
        if place is None:
            return
        bits = self._levels.batch.settling(place.slot)
        known = place.indexes
        if known is not None:
            for index in indexes:
                bits[known[index]] = 1
        elif isinstance(indexes, range) and indexes.step == 1:
            shift = place.shift + slot.first
            bits[shift + indexes.start : shift + indexes.stop] = 1
        else:
            shift = place.shift + slot.first
            for index in indexes:
                bits[shift + index] = 1

    def _slot_opened(self, slot: Slot) -> None:
        super()._slot_opened(slot)
        assert self._opening is not None
        self._places[slot.first] = SlotPlace(self._opening, self._shift, self._indexes)

    def _slot_deleted(self, slot: Slot) -> None:
        super()._slot_deleted(slot)
        self._places.pop(slot.first, None)
