"""A store under load, whose recovery after a crash `store_verdict` checks.

The model replaces the layer above the store: it publishes to queues with slots of ten messages, settles, purges, pages
out, checkpoints and compacts, and stores the log position at which each record ended. A record that ended at or before
the confirmable position of the crash must have its effect. A later one may have it or not, and a transaction must have
all of its effects or none.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from broker.slots.redeliveries import ReturnRun
from broker.store.checkpoint import Checkpoint, QueueState, SlotState
from broker.store.compaction import MovedRecord, SlotReference
from broker.store.files import Files
from broker.store.record import (
    PERSISTENT,
    TARGET,
    encode_message,
    encode_queue_deleted,
    encode_requeued,
    encode_route,
    encode_settled,
    encode_topology,
)
from broker.store.recovery import Recovered
from broker.store.spill import is_spilled
from broker.store.store import VhostStore
from tests.fault.store_state import (
    NEVER,
    ModelMessage,
    ModelQueue,
    ModelSlot,
    ModelTransaction,
    delivery_counts,
    unsettled,
)
from tests.fault.store_verdict import verify
from tests.stored_record import read_slot

FOLDER = Path("/store/vhost")
SEGMENT_BYTES = 4096
SLOT_MESSAGES = 10
SLICE = 3  # messages relocated at a time
COMMITS = 0.3  # the share of the pauses between slices in which a commit runs
ROUTES = [encode_route("topic", f"flight.{word}") for word in ("a", "b", "c")]


class StoreModel:
    """Runs random operations on a store, from a seed."""

    def __init__(self, files: Files, seed: int, *, sync: bool = True) -> None:
        self.files = files
        self.random = Random(seed)
        self.sync = sync
        self.store: VhostStore
        self.opening = True
        self.queues: dict[int, ModelQueue] = {}
        self.discarded: set[int] = set()  # deleted, but recovered until a checkpoint leaves them out
        self.next_number = 1
        self.changes: list[tuple[int, dict[str, Any]]] = []
        self.transactions: list[ModelTransaction] = []
        self.bodies = 0
        self.confirmable = 0
        self.relocated = 0
        self.checkpoints = 0
        self.recovered: Recovered

    # -- operations of the layer above -------------------------------------------------------------------------------

    def open(self, *, quarantine: bool = False) -> Recovered:
        """Open the store as a new process would."""
        self.opening = True
        self.store, self.recovered = VhostStore.open(
            self.files,
            FOLDER,
            segment_bytes=SEGMENT_BYTES,
            sync=self.sync,
            quarantine=quarantine,
            window_messages=SLOT_MESSAGES,
        )
        self.opening = False
        return self.recovered

    def adopt(self) -> None:
        """Continue with the recovered state, which now counts as confirmed."""
        topology = self.recovered.topology
        declared = {change["number"] for change in topology if change["change"] == "queue_declared"}
        declared -= {change["number"] for change in topology if change["change"] == "queue_deleted"}
        queues = {number: ModelQueue(number) for number in declared}
        for state in self.recovered.queues.values():
            if state.number in declared:
                queues[state.number] = self.adopted(state)
        for state in self.recovered.queues.values():
            if state.number not in declared:
                self.store.discard(state)
                self.discarded.add(state.number)
        self.queues = queues
        self.changes = [(0, change) for change in topology]
        self.transactions = []
        self.next_number = self.recovered.next_queue_number
        self.confirmable = self.store.log.confirmable

    def adopted(self, state: QueueState) -> ModelQueue:
        """Return a recovered queue as a ModelQueue."""
        queue = ModelQueue(state.number, state.next_id)
        for slot in state.slots:
            queue.slots.append(ModelSlot(slot.first, slot.end, set(slot.segments), slot.end - slot.first))
            stored = read_slot(self.store, state.number, slot.first, slot.end, unsettled(slot))
            counts = delivery_counts(slot)
            for index in range(slot.end - slot.first):
                message = stored[index]
                if message is None:
                    queue.messages[slot.first + index] = ModelMessage(b"", 0, 0, 0, settled_end=0)
                else:
                    found = ModelMessage(message.body, message.position, message.size, 0)
                    if index in counts:
                        found.counts.append((0, counts[index]))
                    queue.messages[slot.first + index] = found
        return queue

    def work(self, steps: int) -> None:
        """Run this many random operations."""
        verbs = {
            self.publish: 40,
            self.settle: 14,
            self.settle_oldest: 8,
            self.requeue: 4,
            self.purge: 2,
            self.transaction: 8,
            self.transient: 3,
            self.declare: 3,
            self.delete: 1,
            self.commit: 14,
            self.checkpoint: 5,
            self.compact: 3,
        }
        if not self.live_queues():
            self.declare()
        for verb in self.random.choices(list(verbs), list(verbs.values()), k=steps):
            verb()

    def live_queues(self) -> list[ModelQueue]:
        return [queue for queue in self.queues.values() if queue.deleted_end == NEVER]

    def declare(self) -> None:
        queue = self.queues[self.next_number] = ModelQueue(self.next_number)
        self.next_number += 1
        queue.declared_end = self.change({"change": "queue_declared", "number": queue.number})

    def delete(self) -> None:
        queues = self.live_queues()
        if len(queues) < 2:
            return
        queue = self.random.choice(queues)
        for slot in queue.slots:
            for segment in slot.segments:
                self.store.drop_live(segment, 1)
        self.change({"change": "queue_deleted", "number": queue.number})
        self.store.log.append(encode_queue_deleted(self.store.log.synced, 1, queue.number))
        self.store.forget_queue(queue.number, at_once=False)
        queue.slots.clear()
        queue.deleted_end = self.store.log.position

    def change(self, change: dict[str, Any]) -> int:
        self.store.log.append(encode_topology(self.store.log.synced, 1, change))
        self.changes.append((self.store.log.position, change))
        return self.store.log.position

    def publish(self) -> None:
        queues = self.live_queues()
        if not queues:
            return
        queues = self.random.sample(queues, self.random.randint(1, min(3, len(queues))))
        log = self.store.log
        self.bodies += 1
        body = b"%d " % self.bodies + self.random.randbytes(self.random.choice((0, 5, 90, 700, 4096)))
        segment = log.position >> 32
        accepted = [(queue, self.accept(queue, segment)) for queue in queues]
        targets = b"".join([TARGET.pack(queue.number, message_id) for queue, message_id in accepted])
        record = encode_message(log.synced, 1, PERSISTENT, self.random.choice(ROUTES), b"header", body, targets)
        large = len(body) > 700  # the broker's limit is another; the log accepts both forms for any size
        position = log.append_apart(record[: -len(body)], body) if large else log.append(record)
        assert position >> 32 == segment
        for queue, message_id in accepted:
            queue.messages[message_id] = ModelMessage(body, position, len(record), log.position)

    def transient(self) -> None:
        """Write a transient message of a durable queue to the spill file; it gets a message id like others."""
        queues = self.live_queues()
        if not queues:
            return
        queue = self.random.choice(queues)
        record = encode_message(0, 1, 0, ROUTES[0], b"header", b"transient", TARGET.pack(queue.number, queue.next_id))
        position = self.store.spill.extend([record])[0]
        message_id = self.accept(queue, position >> 32)
        queue.messages[message_id] = ModelMessage(b"transient", position, len(record), NEVER)

    def accept(self, queue: ModelQueue, segment: int) -> int:
        if not queue.slots or queue.slots[-1].end - queue.slots[-1].first >= SLOT_MESSAGES or not self.open_slot(queue):
            queue.slots.append(ModelSlot(queue.next_id, queue.next_id))
        slot = queue.slots[-1]
        if segment not in slot.segments:
            slot.segments.add(segment)
            self.store.add_live(segment, 1)
        slot.end += 1
        queue.next_id += 1
        return queue.next_id - 1

    def open_slot(self, queue: ModelQueue) -> bool:
        return queue.slots[-1].end == queue.next_id

    def waiting(self, queue: ModelQueue) -> list[int]:
        return [
            message_id
            for slot in queue.slots
            for message_id in range(slot.first, slot.end)
            if not queue.messages[message_id].settled
        ]

    def settle(self) -> None:
        for queue in self.live_queues():
            waiting = self.waiting(queue)
            if waiting:
                self.settled(queue, self.random.sample(waiting, min(len(waiting), self.random.randint(1, 6))))

    def settle_oldest(self) -> None:
        for queue in self.live_queues():
            waiting = self.waiting(queue)
            if len(waiting) > 3:
                self.settled(queue, waiting[: self.random.randint(3, len(waiting))])

    def settled(self, queue: ModelQueue, ids: list[int]) -> None:
        log = self.store.log
        logged = [message_id for message_id in ids if not self.message(queue, message_id).transient]
        if logged:
            log.append(encode_settled(log.synced, 1, queue.number, logged))
        self.note_settled(queue, ids)

    def note_settled(self, queue: ModelQueue, ids: list[int]) -> None:
        for message_id in ids:
            self.message(queue, message_id).settled_end = self.store.log.position
        for slot in queue.slots.copy():
            sealed = slot.end - slot.first >= SLOT_MESSAGES or slot is not queue.slots[-1]
            if sealed and all(self.message(queue, place).settled for place in range(slot.first, slot.end)):
                queue.slots.remove(slot)
                for segment in slot.segments:
                    self.store.drop_live(segment, 1)
                if slot.logged:
                    self.store.drop_entries(queue.number, slot.first, slot.end, at_once=False)

    def message(self, queue: ModelQueue, message_id: int) -> ModelMessage:
        return queue.messages[message_id]

    def requeue(self) -> None:
        log = self.store.log
        for queue in self.live_queues():
            waiting = [place for place in self.waiting(queue) if not self.message(queue, place).transient]
            if waiting:
                message_id = self.random.choice(waiting)
                counts = self.message(queue, message_id).counts
                count = counts[-1][1] + 1 if counts else 1
                log.append(encode_requeued(log.synced, 1, queue.number, message_id, [ReturnRun(0, 1, count, count)]))
                counts.append((log.position, count))

    def purge(self) -> None:
        log = self.store.log
        queues = self.live_queues()
        if not queues:
            return
        queue = self.random.choice(queues)
        waiting = self.waiting(queue)
        if waiting:
            upto = self.random.choice(waiting)
            settled = [place for place in waiting if place <= upto and self.random.random() >= 0.2]
            if settled:
                log.append(encode_settled(log.synced, 1, queue.number, settled))
                self.note_settled(queue, settled)

    def transaction(self) -> None:
        """Publish, settle and declare in one transaction."""
        published, settled, changes = self.logged()
        with self.store.log.group():
            verbs = (
                self.publish,
                self.publish,
                self.settle,
                self.settle_oldest,
                self.requeue,
                self.purge,
                self.declare,
            )
            for verb in self.random.choices(verbs, k=self.random.randint(0, 5)):
                verb()
        after = self.logged()
        change = after[2] if after[2] > changes else 0
        self.transactions.append(
            ModelTransaction(self.store.log.position, sorted(after[0] - published), sorted(after[1] - settled), change)
        )

    def logged(self) -> tuple[set[tuple[int, int]], set[tuple[int, int]], int]:
        """Return the logged messages, the settled ones among them, and the number of topology changes."""
        messages = {
            (queue.number, message_id): message.settled
            for queue in self.queues.values()
            for message_id, message in queue.messages.items()
            if not message.transient
        }
        return set(messages), {place for place, settled in messages.items() if settled}, len(self.changes)

    def commit(self) -> None:
        """Write and sync the pending records, which may then be confirmed."""
        batch = self.store.log.take()
        if batch is not None:
            if self.random.random() < 0.3:
                self.publish()  # into the next batch, while this one is in flight
            self.store.log.write(batch)
            self.store.log.complete(batch)
            self.confirmable = self.store.log.confirmable

    def page_out(self, queue: ModelQueue, slot: ModelSlot) -> None:
        messages = [self.message(queue, message_id) for message_id in range(slot.first + slot.logged, slot.end)]
        if messages:
            entries = ([message.position for message in messages], [message.size for message in messages])
            self.store.queues.write(queue.number, slot.first + slot.logged, entries)
            slot.logged = slot.end - slot.first

    def snapshot(self, *, clean: bool = False) -> Checkpoint:
        states = []
        for queue in self.live_queues():
            slots = []
            for slot in queue.slots:
                self.page_out(queue, slot)
                bits = 0
                returns = []
                for index in range(slot.end - slot.first):
                    message = self.message(queue, slot.first + index)
                    bits |= (message.settled or message.transient) << index
                    if message.counts:
                        count = message.counts[-1][1]
                        returns.append(ReturnRun(index, index + 1, count, count))
                settled = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
                segments = {segment: 1 for segment in slot.segments if not is_spilled(segment)}
                slots.append(SlotState(slot.first, slot.end, settled, returns, segments))
            states.append(QueueState(queue.number, queue.next_id, slots))
        changes = [change for _, change in self.changes]
        return Checkpoint(self.store.log.position, clean, changes, states, self.next_number)

    def checkpoint(self, *, clean: bool = False) -> None:
        checkpoint = self.snapshot(clean=clean)
        if not clean:
            for verb in self.random.choices((self.publish, self.settle, self.settle_oldest), k=3):
                verb()
        while self.store.log.confirmable < checkpoint.position:
            self.commit()
        self.store.write_checkpoint(checkpoint)
        self.checkpoints += 1

    def compact(self) -> None:
        """Relocate one segment as the layer above the store does."""
        for segment in self.store.compactable():
            holders = [
                (queue, slot) for queue in self.live_queues() for slot in queue.slots if segment in slot.segments
            ]
            references = [
                SlotReference(
                    queue.number,
                    slot.first,
                    slot.first + slot.logged,
                    [index for index in range(slot.logged) if not self.message(queue, slot.first + index).settled],
                    frozenset(slot.segments),
                )
                for queue, slot in holders
            ]
            relocation = self.store.plan_relocation(segment, references, 0.5)
            if relocation is None:
                continue
            while self.store.append_relocation(relocation, SLICE):
                self.between_slices()
            self.between_slices()
            while self.store.log.confirmable < relocation.end:
                self.commit()
            self.apply(self.store.finish_relocation(relocation, SLICE))
            while relocation.left:
                self.between_slices()
                self.apply(self.store.finish_relocation(relocation, SLICE))
            for queue, slot in holders:
                if slot in queue.slots:
                    slot.segments.remove(segment)
                    self.store.drop_live(segment, 1)
            self.relocated += 1
            return

    def between_slices(self) -> None:
        """Do what the event loop may do between two slices of a relocation."""
        self.settle()
        self.publish()
        if self.random.random() < COMMITS:
            self.commit()

    def apply(self, moves: list[MovedRecord]) -> None:
        """Point slots and messages at the relocated copies."""
        for move in moves:
            queue = self.queues[move.queue_number]
            message = self.message(queue, move.message_id)
            message.position, message.size = move.position, move.size
            for slot in queue.slots:
                if slot.first <= move.message_id < slot.end and move.position >> 32 not in slot.segments:
                    slot.segments.add(move.position >> 32)
                    self.store.add_live(move.position >> 32, 1)

    def stop(self) -> None:
        """Stop cleanly."""
        while self.store.log.needs_sync:
            self.commit()
        self.checkpoint(clean=True)
        self.store.close(clean=True)

    def verify(self, safe: int | None = None) -> None:
        """Compare the recovered state with the confirmed operations. Raises: AssertionError."""
        verify(self, self.confirmable if safe is None else safe)
