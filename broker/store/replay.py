"""Replay: apply the records of the log to the state of a checkpoint. Bytes in, state out.

It is idempotent, because recovery after a later crash reads the same records again: a message whose id is below the
next id of its queue is known, settle bits may be set twice, and counts of returns are absolute.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from broker.store.checkpoint import Checkpoint, QueueState
from broker.store.queue_log import QueueLogs
from broker.store.record import (
    DUE,
    HEAD,
    HEAD_BYTES,
    INNER,
    KIND_AT,
    LENGTH_MIN,
    MARK,
    MARK_TAIL,
    MESSAGE,
    MOVED,
    PREFIX_BYTES,
    PRODUCER,
    QUEUE_DELETED,
    QUEUE_NUMBERS,
    REQUEUED,
    RETURNS,
    RUN,
    SETTLED,
    TARGET,
    TARGET_BYTES,
    TOPOLOGY,
    TRANSACTION,
    decode_topology,
    due_of,
    inner_records,
)
from broker.store.window import QueueReplay

_NUMBER_BYTES: Final = 8
_FRONT: Final = Struct(
    ">II16xBB6xIQQ"
)  # as in `record`: length, checksum, kind, flags, length of the targets, a target


class ReplayEnd(NamedTuple):
    """The end of a pass over a block.

    Shapes: the first ``used`` bytes are complete records. ``damage`` is the reason why the next record is unusable; it
        is empty if the block ends within that record: then ``need`` bytes contain it, or at least its length.
    """

    used: int
    damage: str
    need: int


class UnknownRecord(Exception):
    """An intact record has an unknown kind, because a later version wrote it."""

    def __init__(self, position: int, kind: int) -> None:
        self.kind = kind
        super().__init__(f"kind {kind} at {position}")


def cut(block: bytes, at: int, size: int) -> ReplayEnd:
    """Return the end of a pass at a record that is incomplete or has an impossible length."""
    if size - at < HEAD_BYTES:
        return ReplayEnd(at, "", HEAD_BYTES)
    length = HEAD.unpack_from(block, at)[0]
    if length < LENGTH_MIN:
        return ReplayEnd(at, "the length is impossible", 0)
    return ReplayEnd(at, "", length + PREFIX_BYTES)


class Replay:
    """The state of a vhost while its log is read."""

    def __init__(self, checkpoint: Checkpoint, logs: QueueLogs, *, window_messages: int, window_bytes: int) -> None:
        self._logs = logs
        self._window = (window_messages, window_bytes)
        self._deleted: set[int] = set()
        self.changes: list[dict[str, Any]] = list(checkpoint.topology)
        self.next_queue_number = checkpoint.next_queue_number
        self.queues = {state.number: QueueReplay(state, logs, *self._window) for state in checkpoint.queues}
        self.records = 0
        self._due_ms = 0  # of a delayed message, whose target follows
        self._sequences: dict[int, array[int]] = {}  # of numbered messages, by producer

    def run(self, block: bytes, base: int) -> ReplayEnd:
        """Apply the records of a block that begins with one, at position `base`.

        Raises: UnknownRecord; StoreFailed of the queue logs.
        Cost: 2 us a message with one target: no object is created except its position.
        """
        view = memoryview(block)
        size = len(block)
        last_head = size - HEAD_BYTES
        padded = block + bytes(TARGET_BYTES)  # the first target is unpacked with the head, even if there is none
        unpack, iter_targets, queues = _FRONT.unpack_from, TARGET.iter_unpack, self.queues
        queue_number = -1
        queue: QueueReplay | None = None  # of the previous record
        damage = ""
        records = at = 0
        while at <= last_head:
            length, checksum, kind, flags, targets_bytes, number, message_id = unpack(padded, at)
            record_bytes = length + PREFIX_BYTES
            end = at + record_bytes
            if end > size or length < LENGTH_MIN:
                break
            if crc32c(view[at + PREFIX_BYTES : end]) != checksum:
                damage = "the checksum is wrong"
                break
            if kind == MESSAGE:
                if targets_bytes == TARGET_BYTES:
                    if number != queue_number:
                        queue = queues.get(number)
                        queue_number = number
                    if queue is not None and message_id == queue.expected:  # `follow`, without the call
                        queue.positions.append(base + at)
                        queue.sizes.append(record_bytes)
                        queue.next_id = queue.expected = message_id = message_id + 1  # hot: set directly
                        left = queue.left_bytes = queue.left_bytes - record_bytes  # hot: set directly
                        if left <= 0 or message_id == queue.full:
                            queue.seal()
                    else:
                        queue = self._accept(number, message_id, base + at, record_bytes)
                else:
                    targets_at = at + HEAD_BYTES
                    for number, message_id in iter_targets(block[targets_at : targets_at + targets_bytes]):
                        self._accept(number, message_id, base + at, record_bytes)
            elif kind == MARK:
                if MARK_TAIL.unpack_from(block, at + HEAD_BYTES)[1] != base + at:
                    damage = "the record was written for another position"
                    break
            else:
                damage = self._apply(kind, block[at:end], flags, base + at)
                if damage:
                    break
                queue_number = -1  # the record may have deleted the queue
            records += 1
            at = end
        self.records += records
        return ReplayEnd(at, damage, 0) if damage else cut(block, at, size)

    def _accept(self, number: int, message_id: int, position: int, size: int) -> QueueReplay | None:
        """Apply one target of a message, and return the state of its queue, or None if there is no such queue."""
        queue = self.queues.get(number) or self._begin(number, message_id)
        if queue is not None:
            if self._due_ms:
                if message_id >= queue.next_id:
                    queue.due_ms[message_id] = self._due_ms
                self._due_ms = 0
            if message_id == queue.expected:
                queue.follow(position, size)
            else:
                queue.accept(message_id, position, size)
        return queue

    def finish(self) -> None:
        """Seal the last window of every queue, and add the producers' sequences to the changes."""
        for queue in self.queues.values():
            queue.finish()
        for number, sequences in self._sequences.items():
            runs = list(_runs(sequences))
            self.changes.append({"change": "producer_used", "producer": number ^ PRODUCER, "runs": runs})
        self._sequences = {}

    def _apply(self, kind: int, record: bytes, flags: int, position: int) -> str:
        """Apply an intact record of any kind except MARK; return its damage, empty if it was applied."""
        if kind == TRANSACTION:
            try:
                inner = inner_records(record)
            except ValueError as error:
                return str(error)
            for place, piece in inner:
                self._apply_one(piece[KIND_AT] & ~INNER, piece, piece[KIND_AT + 1], position + place)
            self.records += len(inner)
        elif kind & INNER:
            return "the record belongs to a transaction, but is outside of it"
        else:
            self._apply_one(kind, record, flags, position)
        return ""

    def _apply_one(self, kind: int, record: bytes, flags: int, position: int) -> None:
        apply = _APPLY.get(kind)
        if apply is None:
            raise UnknownRecord(position, kind)
        apply(self, record, flags, position)

    def _begin(self, number: int, message_id: int) -> QueueReplay | None:
        """Return the state of a queue at its first record, or None for a deleted queue and for a number that marks a
        producer or a moment: note the producer's sequence, or the moment for the next target.
        """
        if number & PRODUCER:
            sequences = self._sequences.get(number)
            if sequences is None:
                sequences = self._sequences[number] = array("Q")
            sequences.append(message_id)
            return None
        if number == DUE:
            self._due_ms = message_id
            return None
        if number in self._deleted:
            self._due_ms = 0
            return None
        self._reserve(number)
        queue = self.queues[number] = QueueReplay(QueueState(number, 1), self._logs, *self._window)
        return queue

    def message(self, record: bytes, flags: int, position: int) -> None:
        targets_end = HEAD_BYTES + HEAD.unpack_from(record)[8]
        for number, message_id in TARGET.iter_unpack(record[HEAD_BYTES:targets_end]):
            self._accept(number, message_id, position, len(record))

    def settled(self, record: bytes, flags: int, position: int) -> None:
        number, *ids = _numbers(record)
        queue = self.queues.get(number)
        if queue is not None:
            if flags & RUN:
                queue.settle_run(ids[0], ids[0] + ids[1])
            else:
                queue.settle(ids)

    def requeued(self, record: bytes, flags: int, position: int) -> None:
        runs_at = HEAD_BYTES + _NUMBER_BYTES
        queue = self.queues.get(int.from_bytes(record[HEAD_BYTES:runs_at], "big"))
        if queue is not None:
            for first, count, acquired, delivered in RETURNS.iter_unpack(record[runs_at:]):
                queue.requeue(first, first + count, acquired, delivered)

    def queue_deleted(self, record: bytes, flags: int, position: int) -> None:
        (number,) = _numbers(record)
        self._deleted.add(number)
        self.queues.pop(number, None)
        self._reserve(number)

    def _reserve(self, number: int) -> None:
        """Reserve the number of a queue or level that the log contains, so that no new queue gets it."""
        self.next_queue_number = max(self.next_queue_number, (number & QUEUE_NUMBERS) + 1)

    def topology(self, record: bytes, flags: int, position: int) -> None:
        change = decode_topology(record)
        self.changes.append(change)
        number = change.get("number")
        if isinstance(number, int):
            self._reserve(number)

    def moved(self, record: bytes, flags: int, position: int) -> None:
        targets_end = HEAD_BYTES + HEAD.unpack_from(record)[8]
        due_ms = due_of(record)
        for number, message_id in TARGET.iter_unpack(record[HEAD_BYTES:targets_end]):
            queue = self.queues.get(number)
            if queue is not None:
                queue.move(message_id, position, len(record), due_ms)


# The method for each kind of record. Messages and marks outside transactions are frequent: `run` handles them itself.
_APPLY: Final[dict[int, Callable[[Replay, bytes, int, int], None]]] = {
    MESSAGE: Replay.message,
    SETTLED: Replay.settled,
    REQUEUED: Replay.requeued,
    QUEUE_DELETED: Replay.queue_deleted,
    TOPOLOGY: Replay.topology,
    MOVED: Replay.moved,
}


def _numbers(record: bytes) -> tuple[int, ...]:
    return Struct(f">{(len(record) - HEAD_BYTES) // _NUMBER_BYTES}Q").unpack_from(record, HEAD_BYTES)


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield first and end of each run of consecutive ids, ascending."""
    first = end = -1
    for number in sorted(numbers):
        if number > end:
            if end > first:
                yield first, end
            first = number
        end = number + 1
    if end > first:
        yield first, end
