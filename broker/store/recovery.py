"""Recovery: restore the confirmed state from the newest whole checkpoint and the log after it.

Damage after the last position that was provably synced is a torn tail: it is cut and logged. Damage before it is
corruption: the broker refuses to start, and names segment and offset; with quarantine it skips and logs the damage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.store.checkpoint import Checkpoint, QueueState
from broker.store.damage import CorruptStore, Finding, NewerFormat
from broker.store.files import Files
from broker.store.log_scan import LogFolder
from broker.store.queue_log import QueueLogs
from broker.store.rebuild import EntryCompletion
from broker.store.record import KINDS
from broker.store.replay import Replay, UnknownRecord
from broker.store.segment import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK

NO_CHECKPOINT: Final = Checkpoint(0, clean=False, topology=[], queues=[], next_queue_number=1)


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """The progress of recovery. Units: bytes of the log, and records read so far."""

    done_bytes: int
    total_bytes: int
    records: int


@dataclass(slots=True)
class Recovered:
    """The recovered state of a vhost.

    Shapes: ``topology`` lists changes in order, the checkpoint's first. ``queues`` maps numbers to queues with their
        slots, all sealed and on disk; core drops numbers that no change declares. ``clean`` means that the broker
        stopped cleanly; otherwise every message may have been delivered before. Units: ``messages`` are the unsettled
        ones in all queues; ``records`` were read; ``cut_bytes`` were dropped from the tail.
    """

    topology: list[dict[str, Any]]
    queues: dict[int, QueueState]
    next_queue_number: int
    clean: bool
    messages: int = 0
    records: int = 0
    cut_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    def note_crash(self) -> None:
        """Record that the last run did not stop cleanly."""
        self.clean = False


class Recovery:
    """One recovery.

    Shapes: after `run`, `end` is the end of the log, `next_segment` a number never used by a segment, and
        `log.segments` contains the existing segments.
    """

    def __init__(
        self,
        files: Files,
        log: LogFolder,
        queue_logs: QueueLogs,
        checkpoint: tuple[Checkpoint, bool] | None,
        findings: list[Finding],
        progress: Callable[[RecoveryProgress], None],
        *,
        sync: bool,
        quarantine: bool,
        window_messages: int,
        window_bytes: int,
    ) -> None:
        self.log = log
        self._files = files
        self._queue_logs = queue_logs
        self._checkpoint, self._checkpoint_synced = checkpoint or (NO_CHECKPOINT, True)
        self._findings = findings
        self._progress = progress
        self._sync = sync
        self._quarantine = quarantine
        self._replay = Replay(self._checkpoint, queue_logs, window_messages=window_messages, window_bytes=window_bytes)
        self._total_bytes = 0
        self._done_bytes = 0
        self._cut_bytes = 0
        self.end = 0
        self.next_segment = 1

    def run(self) -> Recovered:
        """Read the log, repair its tail and the queue logs, and return the state.

        Raises: CorruptStore; NewerFormat; StoreFailed.
        """
        checkpoint = self._checkpoint
        start = checkpoint.position >> OFFSET_BITS
        self.next_segment = max([*self.log.segments, start]) + 1
        numbers = [number for number in self.log.segments if number >= start]
        if self._sync:
            self._read_from_disk(numbers)
        begins = {start: checkpoint.position & OFFSET_MASK}
        self._total_bytes = sum(self.log.segments[number] - begins.get(number, HEADER_BYTES) for number in numbers)
        replay = self._replay
        entries = EntryCompletion(self.log, self._queue_logs, replay.queues, self._findings)
        self._scan(numbers)
        replay.finish()
        entries.run(segments_known=self._checkpoint_synced, refuse=self._checkpoint_synced and not self._quarantine)
        self._truncate(self.end >> OFFSET_BITS, self.end & OFFSET_MASK)
        queues = {number: queue.state() for number, queue in sorted(replay.queues.items())}
        messages = 0
        for state in queues.values():
            for slot in state.slots:
                self._queue_logs.mark_needed(state.number, slot.first, slot.end)
                messages += slot.unsettled
        self._queue_logs.drop_unneeded(self.end)
        return Recovered(
            replay.changes,
            queues,
            replay.next_queue_number,
            (checkpoint.clean or not numbers) and not replay.records and not self._findings,
            messages,
            replay.records,
            self._cut_bytes,
            self._findings,
        )

    # -- the log ------------------------------------------------------------------------------------------------------

    def _scan(self, numbers: list[int]) -> None:
        position = self._checkpoint.position
        self.end = position
        if position and not self._begins_at_checkpoint():
            return
        for number in numbers:
            start = number << OFFSET_BITS
            try:
                header = self.log.header(number)
            except ValueError as error:
                if self._handle_damage(start, str(error)):
                    return
            else:
                at_checkpoint = number == position >> OFFSET_BITS
                if not at_checkpoint and header.previous_end != self.end:
                    reason = f"segment {number} follows {_place(header.previous_end)}, but the log ends here"
                    if self._handle_damage(min(header.previous_end, self.end), reason):
                        return
            if not self._scan_segment(number, max(position & OFFSET_MASK if start <= position else 0, HEADER_BYTES)):
                return

    def _begins_at_checkpoint(self) -> bool:
        """Return whether the log continues after the checkpoint. If its segment is missing or too short, refuse the log
        if the checkpoint was synced, and otherwise cut it.
        """
        position = self._checkpoint.position
        segment, offset = position >> OFFSET_BITS, position & OFFSET_MASK
        size = self.log.segments.get(segment, 0)
        if size >= offset:
            return True
        there = f"it has {size} bytes" if size else "it is missing"
        reason = f"the checkpoint is at offset {offset} of this segment, and {there}"
        if self._checkpoint_synced:
            self._refuse(segment, size, reason)
            return True
        self.end = segment << OFFSET_BITS | size
        self._cut_tail(segment, size, reason)
        return False

    def _scan_segment(self, number: int, offset: int) -> bool:
        """Replay one segment; return whether the log continues after it."""
        while True:
            try:
                offset, damage = self.log.scan(number, offset, self._replay, self._report_progress)
            except UnknownRecord as error:
                raise NewerFormat(self.log.path(number), error.kind, KINDS, "record kind") from error
            self.end = number << OFFSET_BITS | offset
            if not damage:
                return True
            if self._handle_damage(self.end, damage):
                return False
            offset = self.log.resume(number, offset)

    def _handle_damage(self, position: int, reason: str) -> bool:
        """Handle damage: cut an unsynced tail and return True, or report damage that the caller skips and return False.
        Raises: CorruptStore if the damaged bytes were synced and quarantine is off.
        """
        number, offset = position >> OFFSET_BITS, position & OFFSET_MASK
        known = self._checkpoint.position if self._checkpoint_synced else 0
        synced = max(known, self.log.evidence_after(number, offset))
        if number in self.log.unreadable:  # not a torn tail: the disk has lost bytes that were written
            synced = max(synced, position + 1)
        if synced <= position:
            self._cut_tail(number, offset, reason)
            return True
        lost_bytes = self.log.resume(number, offset) - offset if number in self.log.segments else 0
        self._refuse(number, offset, f"{reason}; the log was synced up to {_place(synced)}", lost_bytes)
        return False

    def _refuse(self, number: int, offset: int, reason: str, lost_bytes: int = 0) -> None:
        """Raise CorruptStore; with quarantine, add a finding instead."""
        if not self._quarantine:
            raise CorruptStore(self.log.path(number), number, offset, reason)
        self._findings.append(Finding("store.quarantined", self.log.path(number), number, offset, lost_bytes, reason))

    def _cut_tail(self, number: int, offset: int, reason: str) -> None:
        """Cut a torn tail: truncate the log at an offset of a segment, remove later segments, and report the loss."""
        lost_bytes = self.log.segments.get(number, offset) - offset
        lost_bytes += sum(size for later, size in self.log.segments.items() if later > number)
        self._cut_bytes += lost_bytes
        self._findings.append(Finding("store.tail_cut", self.log.path(number), number, offset, lost_bytes, reason))
        self._remove_after(number if offset >= HEADER_BYTES else number - 1)
        self._truncate(number, offset)

    def _truncate(self, number: int, offset: int) -> None:
        """Truncate a segment after its last record, removing zeros that the log wrote ahead."""
        if offset >= HEADER_BYTES and self.log.segments.get(number, 0) > offset:
            with self._files.open(self.log.path(number), write=True) as file:
                file.truncate(offset)
                if self._sync:
                    file.sync()
            self.log.segments[number] = offset

    def _remove_after(self, number: int) -> None:
        for later in sorted(self.log.segments, reverse=True):
            if later > number:
                self._files.remove(self.log.path(later))
                del self.log.segments[later]
        if self._sync:
            self._files.sync_folder(self.log.folder)

    def _report_progress(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress(RecoveryProgress(self._done_bytes, self._total_bytes, self._replay.records))

    def _read_from_disk(self, numbers: list[int]) -> None:
        """Sync the log and drop it from the page cache, so that it is read from the disk.

        After a failed sync the page cache has bytes that are not on disk, and no later sync writes them. Recovery must
        not use them, because a power loss would remove them.
        """
        for number in numbers if self._checkpoint_synced else list(self.log.segments):
            self._report_progress(0)  # the caller may stop the recovery here: a sync may take long
            with self._files.open(self.log.path(number), write=True) as file:
                file.sync()
                file.drop_cache()
                self.log.segments[number] = file.size()
        self._files.sync_folder(self.log.folder)


def _place(position: int) -> str:
    return f"segment {position >> OFFSET_BITS}, offset {position & OFFSET_MASK}"
