"""A store in memory for the tests in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker.store.checkpoint import Checkpoint
from broker.store.compaction import Relocation, SlotReference
from broker.store.memory_files import MemoryFiles
from broker.store.record import PERSISTENT, TARGET, encode_message, encode_route
from broker.store.recovery import Recovered
from broker.store.store import VhostStore
from tests.stored_record import read_slot

FOLDER = Path("/data/vhosts/v")
ROUTE = encode_route("topic", "a.b")


class Room:
    """A store that can be closed and reopened. Appended records are written and synced at once."""

    def __init__(self, *, segment_bytes: int = 1 << 20, **options: Any) -> None:
        self.files = MemoryFiles()
        self.options = {"segment_bytes": segment_bytes, "sync": True, **options}
        self.next_ids: dict[int, int] = {}
        self.store: VhostStore
        self.recovered: Recovered
        self.reopen()

    def reopen(self, **options: Any) -> Recovered:
        """Reopen the store, as after kill -9, and return what it recovered."""
        self.store, self.recovered = VhostStore.open(self.files, FOLDER, **{**self.options, **options})
        return self.recovered

    def append(self, *records: bytes) -> list[int]:
        """Append records, sync them, and return their positions."""
        positions = [self.store.log.append(record) for record in records]
        self.commit()
        return positions

    def commit(self) -> None:
        """Write and sync the pending records."""
        log = self.store.log
        batch = log.take()
        if batch is not None:
            log.write(batch)
            log.complete(batch)

    def message(self, *queues: int, body: bytes = b"body") -> bytes:
        """Return the record of a message with the next id of each queue."""
        targets = []
        for queue in queues:
            message_id = self.next_ids.get(queue, 1)
            self.next_ids[queue] = message_id + 1
            targets.append(TARGET.pack(queue, message_id))
        return encode_message(self.store.log.synced, 1, PERSISTENT, ROUTE, b"header", body, b"".join(targets))

    def publish(self, count: int, *queues: int) -> list[int]:
        """Append messages with bodies "1", "2" ... and return their positions."""
        first = self.next_ids.get(queues[0], 1)
        return self.append(*[self.message(*queues, body=b"%d" % number) for number in range(first, first + count)])

    def checkpoint(self, *, clean: bool = False) -> None:
        """Write a checkpoint of the recovered state; no record may have been appended since."""
        states = list(self.recovered.queues.values())
        number = self.recovered.next_queue_number
        position = self.store.log.position
        self.store.write_checkpoint(Checkpoint(position, clean, self.recovered.topology, states, number))

    def reference(self, queue: int, *ids: int) -> SlotReference:
        """Return a reference to messages of a queue's first recovered slot, by default all."""
        slot = self.recovered.queues[queue].slots[0]
        indexes = [one - slot.first for one in ids] or range(slot.end - slot.first)
        return SlotReference(queue, slot.first, slot.end, indexes, frozenset(slot.segments))

    def relocate(self, segment: int, *references: SlotReference, share: float = 1.0) -> Relocation:
        """Append copies of a segment's messages, and sync them."""
        relocation = self.store.plan_relocation(segment, references, share)
        assert relocation is not None
        self.store.append_relocation(relocation)
        self.commit()
        return relocation

    def lose_queue_logs(self) -> None:
        """Remove all queue logs, as if the disk were damaged."""
        for path in [path for path in self.files.contents if path.suffix == ".queue"]:
            self.files.remove(path)

    def waiting(self, queue: int) -> dict[int, bytes]:
        """Return the unsettled messages of a queue as recovered, by id."""
        found: dict[int, bytes] = {}
        state = self.recovered.queues.get(queue)
        for slot in state.slots if state else ():
            bits = int.from_bytes(slot.settled, "little")
            wanted = [index for index in range(slot.end - slot.first) if not bits >> index & 1]
            messages = read_slot(self.store, queue, slot.first, slot.end, wanted)
            found.update({slot.first + i: one.body for i, one in enumerate(messages) if one is not None})
        return found
