"""A queue: gives its next message id, knows its consumers and bindings (street step 7 and 12).

Its messages are in slots and nowhere else; whoever wants one asks the slot manager for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from broker.core.message import Message
from broker.slots.manager import SlotManager
from broker.slots.slot import Owner, Slot
from broker.store.record import encode_purged, encode_queue_deleted, encode_requeued, encode_settled
from broker.store.spill import SPILLED

if TYPE_CHECKING:
    from broker.core.consumer import Consumer
    from broker.routing.binding import Binding
    from broker.routing.exchange import Exchange
    from broker.store.checkpoint import QueueState
    from broker.store.store import VhostStore

__all__ = ["Queue", "QueuePorts", "QueueWorker"]


class Clock(Protocol):
    """The wall clock, in milliseconds, as exact as a record's timestamp needs."""

    now_ms: int


class QueueWorker(Protocol):
    """The slot delivery worker as a queue sees it."""

    owner: Owner

    def wake(self, queue: Queue) -> None:
        """Has the queue served in this loop turn."""


@dataclass(slots=True)
class QueuePorts:
    """What a queue needs from the floors around it; one object for all queues of a vhost.

    ``kept`` hears of each slot that begins to hold messages in memory, ``read`` brings a
    paged-out slot back and then calls, ``settled`` collects the queues whose settlements are to be logged at the end
    of the loop turn.
    """

    store: VhostStore
    assign: Callable[[Queue], QueueWorker]
    retire: Callable[[Queue], None]
    kept: Callable[[Queue, Slot], None]
    read: Callable[[Queue, Slot, Callable[[], None]], None]
    clock: Clock
    window_messages: int = 1000
    window_bytes: int = 1 << 20
    settled: list[Queue] = field(default_factory=list)


class Queue:
    """One queue of a vhost.

    Invariant: ``ready`` and ``unacked`` are the slot manager's counts; ``awake`` is set while the worker has it on its
        list.
    """

    __slots__ = (
        "_pending",
        "_ports",
        "_turn",
        "arguments",
        "auto_delete",
        "awake",
        "bindings",
        "consumers",
        "deleted",
        "durable",
        "exclusive_owner",
        "failures",
        "had_consumers",
        "last_segment",
        "last_slot",
        "manager",
        "name",
        "number",
        "worker",
    )

    def __init__(
        self,
        name: str,
        *,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: dict[str, Any],
        number: int,
        ports: QueuePorts,
    ) -> None:
        self.name = name
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.number = number
        self.bindings: dict[Binding, Exchange] = {}
        self.consumers: list[Consumer] = []
        self.had_consumers = False
        self.deleted = False
        self.awake = False
        self.failures = 0  # how many workers it has ended
        self.last_segment = -1  # the log segment that last_slot is known to count in
        self.last_slot: Slot | None = None
        self._ports = ports
        self._turn = 0
        self._pending: list[int] = []  # ids settled in this loop turn, to be logged as one record
        self.manager = SlotManager(
            ports.window_messages,
            ports.window_bytes,
            on_open=self._slot_opened,
            on_delete=self._slot_deleted,
        )
        self.worker = ports.assign(self)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, ready={self.ready}, unacked={self.unacked})"

    @property
    def ready(self) -> int:
        """Messages that wait to be delivered."""
        return self.manager.ready

    @property
    def unacked(self) -> int:
        """Messages that were delivered and not yet acked."""
        return self.manager.unacked

    def restore(self, state: QueueState, *, redelivered: bool) -> None:
        """Takes the messages that recovery found; all of them lie on disk."""
        slots = [
            Slot.restored(
                found.first,
                found.end - found.first,
                found.settled,
                found.counts,
                set(found.segments),
                charge_bytes=found.size_bytes,
                recovered=redelivered or found.redelivered,
            )
            for found in state.slots
        ]
        self.manager.restore(state.next_id, slots)

    # -- accept -------------------------------------------------------------------------------------------------------

    def accept(self, message: Message) -> int:
        """Takes a message and returns the id it got."""
        message_id = self.manager.publish(message, message.charge)
        if self.consumers and not self.awake:
            self.worker.wake(self)
        return message_id

    def accept_logged(self, message: Message, segment: int) -> int:
        """Takes a message whose record is about to be appended to log segment `segment`; returns the id it got."""
        slot = self.manager.open
        if segment != self.last_segment or slot is not self.last_slot:
            self.last_segment = segment
            self.last_slot = slot
            self.refer(slot, segment)
        message_id = self.manager.publish(message, message.charge)
        if self.consumers and not self.awake:
            self.worker.wake(self)
        return message_id

    def refer(self, slot: Slot, segment: int) -> None:
        """Counts a slot among those that keep a segment, of the log or of the spill, on disk."""
        if segment not in slot.segments:
            slot.segments.add(segment)
            self._ports.store.add_live(segment, 1)

    # -- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Adds a consumer at the end of the round."""
        self.consumers.append(consumer)
        self.had_consumers = True
        self.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Removes a consumer; the last one's leases go back to the slot manager."""
        self.consumers.remove(consumer)
        if not self.consumers:
            self.manager.give_back_all(self.worker.owner)

    def round(self) -> list[Consumer]:
        """Returns the consumers that can take a message now, the one whose turn it is first."""
        consumers = self.consumers
        if len(consumers) == 1:
            return consumers if consumers[0].room() > 0 else []
        turn = self._turn % len(consumers) if consumers else 0
        return [consumer for consumer in consumers[turn:] + consumers[:turn] if consumer.room() > 0]

    def passed_turn(self, consumer: Consumer) -> None:
        """Notes who was served last."""
        self._turn = self.consumers.index(consumer) + 1

    def wake(self) -> None:
        """Has the worker look at this queue when there is something to deliver and somebody to deliver to."""
        if not self.awake and self.consumers and self.manager.ready:
            self.worker.wake(self)

    # -- settle -------------------------------------------------------------------------------------------------------

    def settle(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settles messages that were handed out: acked, rejected or delivered without acknowledgement.

        Those that have a record get one record of their settlement at the end of the loop turn.
        """
        if self.deleted:
            return
        if self.durable:
            self._note_settled(slot, indexes)
        self.manager.settle(slot, indexes)

    def requeue(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Puts messages back in their place, redelivered."""
        if self.deleted:
            return
        self.manager.requeue(slot, indexes)
        if self.durable:
            logged = self._logged_of(slot, indexes)
            if logged:
                log, first = self._ports.store.log, slot.first
                counts = {first + index: slot.counts[index] for index in logged}
                log.append(encode_requeued(log.synced, self._ports.clock.now_ms, self.number, counts))
        self.wake()

    def lose(self, slot: Slot, indexes: Sequence[int]) -> None:
        """Settles ready messages that cannot be read any more."""
        self.manager.lose(slot, indexes)
        if self.durable:
            self._note_settled(slot, indexes)

    def purge(self) -> int:
        """Drops every ready message and returns how many; the unacked ones stay."""
        count = self.manager.ready
        if not count:
            return 0
        manager = self.manager
        upto = manager.next_id - 1
        manager.purge()
        if self.durable:
            store = self._ports.store
            unacked = [slot.first + index for slot in manager.slots.values() for index in slot.unacked()]
            store.log.append(encode_purged(store.log.synced, self._ports.clock.now_ms, self.number, upto, unacked))
        return count

    def log_settlements(self) -> None:
        """Appends one record for all that was settled in this loop turn."""
        ids, self._pending = self._pending, []
        if ids and not self.deleted:
            log = self._ports.store.log
            log.append(encode_settled(log.synced, self._ports.clock.now_ms, self.number, ids))

    def delete(self) -> int:
        """Tells the consumers, drops everything and returns how many messages were ready."""
        count = self.manager.ready
        self.deleted = True
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            consumer.cancelled_by_broker()
        self.manager.clear()
        self._pending.clear()
        store = self._ports.store
        if self.durable:
            store.log.append(encode_queue_deleted(store.log.synced, self._ports.clock.now_ms, self.number))
        store.forget_queue(self.number, at_once=not self.durable)
        self._ports.retire(self)
        return count

    def _note_settled(self, slot: Slot, indexes: Sequence[int]) -> None:
        pending = self._pending
        if not pending:
            self._ports.settled.append(self)
        first = slot.first
        pending.extend([first + index for index in self._logged_of(slot, indexes)])

    @staticmethod
    def _logged_of(slot: Slot, indexes: Sequence[int]) -> list[int]:
        """Returns those of the messages that have a record in the log.

        A transient message's id is given again after a crash, so the log must not say anything about it.
        """
        contents = slot.contents
        if contents is None:
            return [index for index in indexes if not slot.is_volatile(index)]
        logged = []
        for index in indexes:
            message: Message | None = contents[index]
            if message is None:  # it could not be read
                if not slot.is_volatile(index):
                    logged.append(index)
            elif message.entry is not None and message.entry[0] < SPILLED:
                logged.append(index)
        return logged

    def _slot_opened(self, slot: Slot) -> None:
        self._ports.kept(self, slot)

    def _slot_deleted(self, slot: Slot) -> None:
        store = self._ports.store
        for segment in slot.segments:
            store.drop_live(segment, 1)
        if slot.logged:
            store.drop_entries(self.number, slot.first, slot.end, at_once=not self.durable)
