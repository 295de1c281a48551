"""Checkpoints: the state of a vhost at one log position, so that recovery reads only the log after it.

checkpoint file
    0   8s  magic "SLOTMQ\\0C"
    8   u16 format version
    10  u8  clean: the broker stopped cleanly after it
    11  u8  synced: written with syncs on, so that everything below its position is on disk
    12  u32 CRC-32C of everything else
    16  u64 position          24  u64 next queue number
    32  u32 bytes of topology 36  u32 queues
    40      topology: JSON, a list of changes
            per queue: u64 number, u64 next id, u32 slots
            per slot:  u64 first, u64 end, u64 bytes, u32 bytes of the settled bits, u32 runs, u32 segments,
                       u8 redelivered, the settled bits, runs of returned messages (u32 first index, u32 end, u32 number
                       of returns, u32 number of returns that count towards the delivery limit),
                       segments (u32 number, u32 live messages)

A checkpoint gets its name once it is written and, unless syncs are off, synced. So a kill never leaves half of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812 - the library's lower-case name
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from broker.slots.redeliveries import ReturnRun
from broker.store.damage import Finding, NewerFormat, StoreFailed
from broker.store.files import Files
from broker.store.record import encode_change

_MAGIC: Final = b"SLOTMQ\0C"
_FORMAT: Final = 1
_FRONT: Final = Struct(">8sHBB")
_CHECKSUM: Final = Struct(">I")
_HEAD_AT: Final = _FRONT.size + _CHECKSUM.size
_HEAD: Final = Struct(">QQII")
_QUEUE: Final = Struct(">QQI")
_SLOT: Final = Struct(">QQQIIIB")
_RETURNS: Final = Struct(">IIII")
_PAIR: Final = Struct(">II")
_NAME: Final = re.compile(r"checkpoint-(\d{10})")
_SLICE: Final = 500  # queues and slots encoded in about a millisecond; other threads may run between two slices
_KEPT: Final = 2  # the newest, and its predecessor in case the newest cannot be read


@dataclass(slots=True)
class SlotState:
    """A slot in a checkpoint.

    Shapes: ids are first <= id < end. ``settled`` is one bit per message, least significant first; missing bits are 0.
        ``returns`` are runs of messages with the number of their returns. The keys of ``segments`` are the log
        segments that its entries may point to; the values are the numbers of these entries if recovery counted them.
        ``redelivered`` means that its messages have survived an unclean stop: any of them may have been delivered.
    Units: ``size_bytes`` is the sum of the records of its messages.
    """

    first: int
    end: int
    settled: bytes = b""
    returns: list[ReturnRun] = field(default_factory=list)
    segments: dict[int, int] = field(default_factory=dict)
    size_bytes: int = 0
    redelivered: bool = False

    @property
    def unsettled(self) -> int:
        return self.end - self.first - int.from_bytes(self.settled, "little").bit_count()


@dataclass(slots=True)
class QueueState:
    """The slots of a durable queue, ascending, and the id of its next message."""

    number: int
    next_id: int
    slots: list[SlotState] = field(default_factory=list)


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint.

    Shapes: ``topology`` yields the changes that create the durable exchanges, queues and bindings; ``queues`` contains
        the slots of the durable queues.
    Invariant: it includes every record before log position ``position``; as queues are captured one after another, it
        may also include later records, which recovery may replay.
    """

    position: int
    clean: bool
    topology: Iterable[dict[str, Any]]
    queues: list[QueueState]
    next_queue_number: int


def encode_checkpoint(checkpoint: Checkpoint, *, synced: bool, between: Callable[[], None] = lambda: None) -> bytes:
    """Return the file of a checkpoint; call `between` after each slice. Cost: O(topology + slots), 2 us a slot."""
    # One by one: encoding a long list in one piece would block all threads.
    topology = b"[%b]" % b",".join([encode_change(change) for change in checkpoint.topology])
    pieces = [
        _HEAD.pack(checkpoint.position, checkpoint.next_queue_number, len(topology), len(checkpoint.queues)),
        topology,
    ]
    left = _SLICE
    for queue in checkpoint.queues:
        left -= 1
        pieces.append(_QUEUE.pack(queue.number, queue.next_id, len(queue.slots)))
        for slot in queue.slots:
            if left <= 0:
                between()
                left = _SLICE
            left -= 1
            settled = slot.settled
            sizes = (slot.size_bytes, len(settled), len(slot.returns), len(slot.segments), slot.redelivered)
            returns = b"".join([_RETURNS.pack(*run) for run in slot.returns])
            segments = b"".join([_PAIR.pack(*pair) for pair in slot.segments.items()])
            pieces += (_SLOT.pack(slot.first, slot.end, *sizes), settled, returns, segments)
        if left <= 0:
            between()
            left = _SLICE
    content = b"".join(pieces)
    front = _FRONT.pack(_MAGIC, _FORMAT, checkpoint.clean, synced)
    return front + _CHECKSUM.pack(crc32c(content, crc32c(front))) + content


def decode_checkpoint(block: bytes, path: Path) -> tuple[Checkpoint, bool]:
    """Return the checkpoint in a file, and whether it was written with syncs on.

    Raises: ValueError when the file is damaged; NewerFormat when a later version wrote it: then everything may be
        different, except the magic and the positions of format and checksum.
    """
    try:
        magic, version, clean, synced = _FRONT.unpack_from(block)
        if magic != _MAGIC:
            raise ValueError("this is not a checkpoint")
        checksum = crc32c(memoryview(block)[_HEAD_AT:], crc32c(block[: _FRONT.size]))
        if checksum != _CHECKSUM.unpack_from(block, _FRONT.size)[0]:
            raise ValueError("the checksum is wrong")
        if version > _FORMAT:
            raise NewerFormat(path, version, _FORMAT)
        at = _HEAD_AT
        position, next_queue_number, topology_bytes, queues = _HEAD.unpack_from(block, at)
        at += _HEAD.size
        topology = json.loads(block[at : at + topology_bytes])
        at += topology_bytes
        states = []
        for _ in range(queues):
            state, at = _decode_queue(block, at)
            states.append(state)
    except StructError as error:
        raise ValueError(f"it is cut off: {error}") from error
    return Checkpoint(position, bool(clean), topology, states, next_queue_number), bool(synced)


class LogNeed(NamedTuple):
    """The log that a recovery needs: everything from ``position`` on, and older ``segments``."""

    position: int
    segments: frozenset[int]

    @classmethod
    def of(cls, checkpoint: Checkpoint, between: Callable[[], None] = lambda: None) -> LogNeed:
        """Return the log that a recovery from a checkpoint needs; call `between` after each slice."""
        segments: set[int] = set()
        for number, queue in enumerate(checkpoint.queues):
            if number % _SLICE == 0:
                between()
            for slot in queue.slots:
                segments.update(slot.segments)
        return cls(checkpoint.position, frozenset(segments))


WHOLE_LOG: Final = LogNeed(0, frozenset())  # the need of a recovery without a checkpoint


class CheckpointFolder:
    """The numbered checkpoints in the folder of one vhost: the newest and its predecessor.

    Until the second one is written, the whole log is kept in place of a predecessor.
    """

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._numbers = sorted(int(match[1]) for name in files.list(folder) if (match := _NAME.fullmatch(name)))
        self._damaged: list[int] = []
        self._needs = [WHOLE_LOG]  # of the kept checkpoints that this process has read or written, ascending

    def read(self, findings: list[Finding]) -> tuple[Checkpoint, bool] | None:
        """Return the newest intact checkpoint and whether it was synced, or None. A damaged one is added to `findings`
        and stays until `remove_damaged`; recovery starts from its predecessor, whose log is kept. Raises: NewerFormat.
        """
        skipped: list[tuple[Path, str]] = []
        found: tuple[Checkpoint, bool] | None = None
        while self._numbers and found is None:
            path = self._path(self._numbers[-1])
            try:
                found = decode_checkpoint(self._files.read(path), path)
            except (ValueError, StoreFailed) as error:
                skipped.append((path, error.reason if isinstance(error, StoreFailed) else str(error)))
                self._damaged.append(self._numbers.pop())
        if found is not None:
            self._needs = [LogNeed.of(found[0])]
        instead = self._path(self._numbers[-1]).name if found is not None else "the beginning of the log"
        for path, reason in skipped:
            because = f"{reason}; recovery starts from {instead}"
            findings.append(Finding("store.checkpoint_skipped", path, 0, 0, self._files.size(path), because))
        return found

    @property
    def has_any(self) -> bool:
        """Whether there are checkpoints, damaged or not."""
        return bool(self._numbers or self._damaged)

    def remove_damaged(self) -> None:
        """Remove the checkpoints that `read` skipped: recovery has succeeded without them. Raises: StoreFailed."""
        while self._damaged:
            self._files.remove(self._path(self._damaged.pop()))

    @property
    def newest_need(self) -> LogNeed:
        """The part of the log that a recovery from the newest checkpoint needs."""
        return self._needs[-1]

    @property
    def need(self) -> LogNeed:
        """The part of the log that a recovery from any kept checkpoint needs."""
        return LogNeed(self._needs[0].position, frozenset().union(*[need.segments for need in self._needs]))

    def write(self, checkpoint: Checkpoint, *, sync: bool, between: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint, synced if `sync`, then give it its name and remove the oldest ones. Raises: StoreFailed.

        `between` is called after each slice of the work.
        """
        number = max([*self._numbers, *self._damaged], default=0) + 1
        block = encode_checkpoint(checkpoint, synced=sync, between=between)
        self._files.replace(self._path(number), [block], sync=sync).close()
        self._numbers.append(number)
        self._needs.append(LogNeed.of(checkpoint, between))
        self._keep(_KEPT)

    def drop_older(self) -> bool:
        """Keep only the newest checkpoint; return whether more was kept before. Raises: StoreFailed."""
        had_older = len(self._needs) > 1 or len(self._numbers) > 1
        self._keep(1)
        return had_older

    def _keep(self, count: int) -> None:
        """Remove all but the `count` newest checkpoints; files that only the removed ones need may be removed later."""
        while len(self._numbers) > count:
            self._files.remove(self._path(self._numbers.pop(0)))
        del self._needs[:-count]

    def _path(self, number: int) -> Path:
        return self._folder / f"checkpoint-{number:010d}"


def _decode_queue(block: bytes, at: int) -> tuple[QueueState, int]:
    number, next_id, slots = _QUEUE.unpack_from(block, at)
    at += _QUEUE.size
    queue = QueueState(number, next_id)
    for _ in range(slots):
        first, end, size_bytes, settled_bytes, returns, segments, redelivered = _SLOT.unpack_from(block, at)
        at += _SLOT.size
        settled = block[at : at + settled_bytes]
        at += settled_bytes
        returns_end = at + returns * _RETURNS.size
        segments_end = returns_end + segments * _PAIR.size
        queue.slots.append(
            SlotState(
                first,
                end,
                settled,
                [ReturnRun(*run) for run in _RETURNS.iter_unpack(block[at:returns_end])],
                dict(_PAIR.iter_unpack(block[returns_end:segments_end])),
                size_bytes,
                bool(redelivered),
            )
        )
        at = segments_end
    return queue, at
