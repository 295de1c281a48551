"""The store of one vhost: the interface for core and delivery.

A confirm may follow a record as soon as ``log.confirmable`` is past it. Methods marked *blocking* belong in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from broker.event_log import get_logger
from broker.store.checkpoint import Checkpoint, CheckpointFolder, QueueState
from broker.store.compaction import MovedRecord, Relocation, SlotReference, plan_relocation, runs_of
from broker.store.damage import Finding, note_missing
from broker.store.files import Files
from broker.store.log_scan import LogFolder
from broker.store.message_log import MessageLog
from broker.store.queue_entry import Entries
from broker.store.queue_log import QueueLogs
from broker.store.recorder import Recorder
from broker.store.recovery import Recovered, Recovery, RecoveryProgress
from broker.store.segment import OFFSET_BITS
from broker.store.spill import Spill, is_spilled
from broker.store.stored_slots import StoredSlots

_log = get_logger()
_RUNNING: Final = "running"  # a file that exists while a broker uses the folder; an unclean stop leaves it behind
_FOLDERS: Final = ("log", "spill", "queues")
AT_ONCE: Final = 0  # a log position before every checkpoint
RELOCATION_MAX_BYTES: Final = 64 * 1024 * 1024  # the memory of one relocation


class VhostStore:
    """One vhost's durable log, its spill, its queue logs and its checkpoints.

    Shapes: ``log`` contains the durable records, ``spill`` those of transient messages that were paged out. ``queues``
        maps paged-out messages to the positions of their records, and ``slots`` reads messages back. A segment number
        is the upper half of a position, ``position >> 32``; those of the spill have their highest bit set.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        log: MessageLog,
        queues: QueueLogs,
        checkpoints: CheckpointFolder,
        *,
        segment_bytes: int,
        sync: bool,
        quarantine: bool,
    ) -> None:
        self.log = log
        self.recorder = Recorder(log)
        self.spill = Spill(files, folder / "spill", segment_bytes=segment_bytes)
        self._files = files
        self._folder = folder
        self.queues = queues
        self.slots = StoredSlots(files, folder / "log", log, self.spill, queues, quarantine=quarantine)
        self._checkpoints = checkpoints
        self._sync = sync
        self._relocation: Relocation | None = None  # appended, but not finished
        self._refused: dict[int, int] = {}  # segments not worth relocating, with the number of references then
        self._checkpoint_position = 0  # of the last durable checkpoint of this process
        self._saves_space = False
        self.holds_back = False  # some files are kept only for the older checkpoint

    @classmethod
    def open(
        cls,
        files: Files,
        folder: Path,
        *,
        segment_bytes: int,
        sync: bool,
        progress: Callable[[RecoveryProgress], None] | None = None,
        quarantine: bool = False,
        window_messages: int = 1000,
        window_bytes: int = 1 << 20,
        expected: bool = False,
    ) -> tuple[VhostStore, Recovered]:
        """Recover the content of the folder and return the store, ready to append, and the state. *Blocking.*

        Shapes: an `expected` store without log and checkpoints is lost, not new.
        The segments of every recovered slot are counted as live, one reference per slot and segment. Findings were
        logged, and a checkpoint written when there were any, so that the next start does not report them again.
        `progress` is called for each block of the log; an exception in it stops the recovery, as a crash would.
        Raises: CorruptStore when synced data is damaged or missing; MissingData; NewerFormat; StoreFailed.
        """
        new = not _contains_store(files, folder)
        if new and expected:
            note_missing(folder / "log", "and so are the checkpoints: the vhost is lost", quarantine=quarantine)
        for name in _FOLDERS:
            files.make_folder(folder / name)
        if sync or new:
            files.sync_folder(folder)
            files.sync_folder(folder.parent)
        findings: list[Finding] = []
        queues = QueueLogs(files, folder / "queues", sync=sync)
        checkpoints = CheckpointFolder(files, folder)
        recovery = Recovery(
            files,
            LogFolder(files, folder / "log"),
            queues,
            checkpoints.read(findings),
            findings,
            progress or (lambda _progress: None),
            sync=sync,
            quarantine=quarantine,
            window_messages=window_messages,
            window_bytes=window_bytes,
        )
        try:
            recovered = recovery.run()
        except BaseException:
            queues.close()
            raise
        finally:
            for finding in findings:
                facts = finding._asdict()
                _log.warning(facts.pop("event"), **facts | {"path": str(finding.path)})
        log = MessageLog(
            files,
            folder / "log",
            segment_bytes=segment_bytes,
            sync=sync,
            number=recovery.next_segment,
            previous_end=recovery.end,
            segments=recovery.log.segments,
        )
        store = cls(
            files, folder, log, queues, checkpoints, segment_bytes=segment_bytes, sync=sync, quarantine=quarantine
        )
        store._start(recovered)
        if new and not sync:  # the vhost itself must be on disk, even if its messages need not be
            with files.open(log.path(log.active), write=True) as file:
                file.sync()
            files.sync_folder(folder / "log")
        return store, recovered

    def _start(self, recovered: Recovered) -> None:
        running = self._folder / _RUNNING
        if self._files.exists(running):
            recovered.note_crash()
        else:
            self._files.open(running, create=True).close()
            if self._sync:
                self._files.sync_folder(self._folder)
        self.spill.wipe()
        self.log.begin()
        for queue in recovered.queues.values():
            for slot in queue.slots:
                for segment in slot.segments:
                    self.log.add_live(segment, 1)
        if recovered.findings:
            self.write_checkpoint(
                Checkpoint(
                    self.log.position,
                    clean=False,
                    topology=recovered.topology,
                    queues=list(recovered.queues.values()),
                    next_queue_number=recovered.next_queue_number,
                )
            )
            self._checkpoints.remove_damaged()

    def add_live(self, segment: int, n: int) -> None:
        """Count n more slots that need a segment of the log or of the spill."""
        (self.spill if is_spilled(segment) else self.log).add_live(segment, n)

    def drop_live(self, segment: int, n: int) -> None:
        """Count n fewer slots that need a segment of the log or of the spill."""
        (self.spill if is_spilled(segment) else self.log).drop_live(segment, n)

    def unpin(self, segments: Iterable[int]) -> None:
        """Count one slot fewer for each of these segments."""
        for segment in segments:
            self.drop_live(segment, 1)

    # -- deleted slots and queues --------------------------------------------------------------------------------------

    def drop_entries(self, queue_number: int, first: int, end: int, *, at_once: bool) -> None:
        """Release the entries of a deleted slot. A file without any needed entry is removed once no kept checkpoint
        refers to it; at once for a queue that is not durable, because no checkpoint does. Raises: StoreFailed.
        """
        self.queues.drop(queue_number, first, end, AT_ONCE if at_once else self.log.position)
        if at_once:
            self.queues.reclaim(AT_ONCE + 1)

    def forget_queue(self, queue_number: int, *, at_once: bool, recorded: bool = False) -> None:
        """Release all entries of a deleted queue, as `drop_entries` does. Raises: StoreFailed.

        `recorded` means that the log ends with the record of the deletion. A checkpoint at its end includes the
        deletion, so the files are removed even if the log does not grow.
        """
        self.queues.forget(queue_number, AT_ONCE if at_once else self.log.position - recorded)
        if at_once:
            self.queues.reclaim(AT_ONCE + 1)

    def discard(self, state: QueueState) -> None:
        """Discard a recovered queue that no change of the topology declares, with its references."""
        for slot in state.slots:
            self.unpin(slot.segments)
        self.forget_queue(state.number, at_once=False)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def write_checkpoint(self, checkpoint: Checkpoint, between: Callable[[], None] = lambda: None) -> None:
        """Sync the queue logs, write the checkpoint and remove files that no kept checkpoint needs. *Blocking.*

        `between` is called after each slice, to let other threads run: compiled code does not do so by itself.

        Each queue of the checkpoint was captured at `position` or later, with the entries of all its slots paged out,
        and the log is confirmable up to the last of these positions: replaying a record twice changes nothing.
        Raises: StoreFailed; RuntimeError if the log is not that far, or a relocation is half done.
        """
        if self.log.confirmable < checkpoint.position:
            raise RuntimeError("the checkpoint is ahead of what the log has on disk")
        if self._relocation is not None:
            raise RuntimeError("a relocation was appended and not finished")
        self.queues.sync()
        self._checkpoints.write(checkpoint, sync=self._sync, between=between)
        self._checkpoint_position = checkpoint.position
        if self._saves_space:
            self._checkpoints.drop_older()
        self._reclaim()

    def save_space(self, *, on: bool) -> None:
        """Keep only one checkpoint if `on`, otherwise two again once another is written. *Blocking*; in the checkpoint
        thread. The older one is needed only if the newest is damaged, and its part of the log takes space.
        Raises: StoreFailed.
        """
        self._saves_space = on
        if on and self._checkpoints.drop_older():
            before = dict(self.log.segments)
            gone = self._reclaim()
            freed_bytes = sum([before[segment] for segment in gone])
            _log.warning("checkpoint.given_up", path=str(self._folder), segments=len(gone), freed_bytes=freed_bytes)

    def _reclaim(self) -> list[int]:
        """Remove files that no kept checkpoint needs, and return the removed segments. Raises: StoreFailed."""
        need, newest = self._checkpoints.need, self._checkpoints.newest_need
        gone = self.log.reclaim(need)
        for segment in gone:
            self._refused.pop(segment, None)
        self.queues.reclaim(need.position)
        self.holds_back = bool(self.log.unneeded(newest)) or self.queues.holds_before(newest.position)
        return gone

    # -- compaction: see `compaction` for the order of the steps ------------------------------------------------------

    def compactable(self) -> list[int]:
        """Return the segments that may be worth relocating, those with the fewest references first.

        Shapes: they end before the last checkpoint of this process. Only `plan_relocation` determines how many of their
            bytes are needed.
        """
        limit = self._checkpoint_position >> OFFSET_BITS
        live = self.log.live
        found = [number for number in sorted(self.log.segments) if number < limit and number in live]
        # A slot may need any part of a segment, so the count of references is an estimate. A refused segment is tried
        # again when its references have dropped by a quarter.
        refused = self._refused
        found = [number for number in found if live[number] * 4 <= refused.get(number, live[number] * 4) * 3]
        return sorted(found, key=live.__getitem__)

    def plan_relocation(self, segment: int, slots: Iterable[SlotReference], below_ratio: float) -> Relocation | None:
        """Return copies of a segment's records that the slots need, or None if the segment stays. *Blocking.* It stays
        if too much of it is needed. It also stays, and this is logged, if the record of one of the messages is found
        neither at its entry's position nor elsewhere in the slot's segments: a damaged part may contain that record.
        Shapes: `slots` are all slots, of any queue, that have the segment among their segments.
        Raises: StoreFailed.
        """
        limit_bytes = min(int(self.log.segments[segment] * below_ratio), RELOCATION_MAX_BYTES)
        references = list(slots)
        corrected: dict[tuple[int, int], Entries] = {}

        def read_entries(slot: SlotReference) -> Entries:
            entries = corrected.get((slot.queue_number, slot.first))
            return entries or self.queues.read(slot.queue_number, slot.first, slot.end)

        for searched in (False, True):
            relocation = plan_relocation(
                self.log.synced, self.slots.read_span, read_entries, segment, references, limit_bytes
            )
            if relocation is None:
                break
            if not relocation.doubtful:
                return relocation
            if searched:
                messages = sum([len(indexes) for _, indexes in relocation.doubtful])
                _log.warning(
                    "segment.kept",
                    segment=segment,
                    messages=messages,
                    queues=sorted({slot.queue_number for slot, _ in relocation.doubtful}),
                    reason="the records of these messages were not found, and may be in a damaged part of the segment",
                )
                break
            for slot, indexes in relocation.doubtful:
                entries = self.queues.read(slot.queue_number, slot.first, slot.end)
                self.slots.search(slot.queue_number, slot.first, entries, indexes, slot.segments)
                corrected[slot.queue_number, slot.first] = entries
        self._refused[segment] = self.log.live.get(segment, 0)
        return None

    def append_relocation(self, relocation: Relocation, limit: int | None = None) -> bool:
        """Append up to `limit` copies, or all if None; return whether more are left. Finish it once it is on disk."""
        if self._relocation not in (None, relocation):
            raise RuntimeError("one relocation at a time")
        self._relocation = relocation
        return relocation.append(self.log, limit)

    def finish_relocation(self, relocation: Relocation, limit: int | None = None) -> list[MovedRecord]:
        """Point the queue logs at the copies of up to `limit` messages and return the moves.

        In the same turn the caller adds the copies' segments to its slots and updates messages in memory. After the
        last move none of the slots needs the segment.
        Raises: StoreFailed; RuntimeError when the copies are not on disk yet.
        """
        if relocation is not self._relocation or self.log.confirmable < relocation.end:
            raise RuntimeError("the relocation is not on disk yet")
        moves = relocation.take_moves(limit)
        for run in runs_of((one.queue_number, one.message_id, one.position, one.size, one.due_ms) for one in moves):
            self.queues.move(*run)
        if not relocation.left:
            self._relocation = None
        return moves

    def close_readers(self) -> None:
        """Close the files that are open for reading; a read opens its file again."""
        for files in (self.log, self.queues, self.spill):
            files.readers.close()

    def close(self, *, clean: bool = False) -> None:
        """Close the files. `clean`: the last checkpoint was a clean one and nothing followed; note the clean stop."""
        self.log.close(clean=clean)
        self.queues.close()
        self.spill.close()
        if clean:
            self.spill.wipe()
            self._files.remove(self._folder / _RUNNING)
            if self._sync:
                self._files.sync_folder(self._folder)


def _contains_store(files: Files, folder: Path) -> bool:
    """Return whether a folder contains a checkpoint or a segment of the log, which every store has."""
    if not files.exists(folder):
        return False
    has_log = files.exists(folder / "log") and bool(LogFolder(files, folder / "log").segments)
    return has_log or CheckpointFolder(files, folder).has_any
