"""Rebuild: at startup, restore missing or damaged queue-log entries from the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.store.compaction import runs_of
from broker.store.damage import CorruptStore, Finding
from broker.store.entry_search import EntrySearch
from broker.store.log_scan import LogFolder
from broker.store.queue_log import QueueLogs
from broker.store.segment import OFFSET_BITS, OFFSET_MASK
from broker.store.spill import is_spilled
from broker.store.window import QueueReplay, Window


class _Suspect(NamedTuple):
    """Messages of a window whose entries point to no record. Shapes: ``indexes`` count from the window's first id."""

    queue_number: int
    window: Window
    indexes: list[int]


class EntryCompletion:
    """The rebuild of the queue logs of one vhost. It settles messages whose records are lost for good.

    Construct it before the log is replayed, because replay may create chunks that were missing.
    Units: ``entries`` counts the entries that were written.
    """

    def __init__(
        self, log: LogFolder, queue_logs: QueueLogs, queues: Mapping[int, QueueReplay], findings: list[Finding]
    ) -> None:
        self._log = log
        self._queue_logs = queue_logs
        self._queues = queues
        self._findings = findings
        self._damage: list[tuple[int, int, str]] = []
        self.entries = 0
        self._queues_without_chunks()

    def run(self, *, segments_known: bool, refuse: bool) -> None:
        """Complete the queue logs, after the log was replayed. Shapes: with `segments_known` the segments of each
        window are known unless the window is doubtful.
        Raises: CorruptStore when messages are lost and the start must be refused; StoreFailed.
        """
        rebuilt = self._queues_without_chunks()
        if rebuilt:
            self._search(dict.fromkeys(rebuilt))
            reason = f"{len(rebuilt)} queues had no entries; {self.entries} were written again from the log"
            self._findings.append(Finding("store.queue_logs_rebuilt", self._log.folder, 0, 0, 0, reason))
        suspects = list(self._suspects(rebuilt, segments_known=segments_known))
        ids: dict[int, set[int] | None] = {}
        for number, window, indexes in suspects:
            if number not in rebuilt:  # the log was already searched for all messages of rebuilt queues
                wanted = ids.setdefault(number, set())
                assert wanted is not None
                wanted.update([window.first + index for index in indexes])
        if ids:
            before = self.entries
            self._search(ids)
            if self.entries > before:
                reason = f"{self.entries - before} damaged entries were written again from the log"
                self._findings.append(Finding("store.queue_logs_rebuilt", self._log.folder, 0, 0, 0, reason))
        for number, window, _ in suspects:
            self._settle_lost(number, window, refuse=refuse)

    def _queues_without_chunks(self) -> set[int]:
        """Return the numbers of the queues that need a chunk which was missing at startup."""
        check = self._queue_logs.check
        return {
            number
            for number, queue in self._queues.items()
            if [window for window in queue.windows if not check(number, window.first, window.end)]
        }

    def _suspects(self, rebuilt: set[int], *, segments_known: bool) -> list[_Suspect]:
        found = []
        for number, queue in self._queues.items():
            for window in queue.windows:
                missing = window.segments.keys() - self._log.segments.keys()
                if segments_known and not (missing or window.doubtful or number in rebuilt):
                    continue
                entries = self._queue_logs.read(number, window.first, window.end)
                lost = window.recount(entries, self._log.segments)
                if lost:
                    found.append(_Suspect(number, window, lost))
        return found

    def _search(self, ids: Mapping[int, set[int] | None]) -> None:
        """Write the entries of unsettled messages from the log. Shapes: `ids` maps queues to ids, None means all."""

        def wanted(number: int, message_id: int) -> bool:
            if number not in ids:
                return False
            chosen = ids[number]
            if chosen is not None and message_id not in chosen:
                return False
            return self._queues[number].window_of(message_id) is not None

        search = EntrySearch(wanted, self._write)
        search.walk(self._log, self._log.segments)
        self._write(search)
        self._damage = search.damage

    def _write(self, search: EntrySearch) -> None:
        """Write the entries that were found, each run of ids with one call."""
        found, due_ms = search.take_found()
        self.entries += len(found)
        for run in runs_of([(*key, *found[key], due_ms.get(key, 0)) for key in sorted(found)]):
            self._queue_logs.write(*run)

    def _settle_lost(self, number: int, window: Window, *, refuse: bool) -> None:
        entries = self._queue_logs.read(number, window.first, window.end)
        positions = entries[0]
        lost = []
        for index in window.recount(entries, self._log.segments):
            window.bits[index] = 1
            if not is_spilled(positions[index] >> OFFSET_BITS):  # the spill does not outlive the process
                lost.append(index)
        if lost:
            self._report_loss(number, window.first + lost[0], len(lost), positions[lost[0]], refuse=refuse)

    def _report_loss(self, queue_number: int, first: int, count: int, position: int, *, refuse: bool) -> None:
        segment, offset, what = position >> OFFSET_BITS, position & OFFSET_MASK, ""
        if self._damage and not position:  # the record was probably in the damaged part of the log
            segment, offset, what = self._damage[0]
            what = f"{what}; "
        path = self._log.path(segment)
        reason = f"{what}the records of {count} messages of queue {queue_number} from id {first} on are missing"
        if refuse:
            self._queue_logs.withdraw()
            raise CorruptStore(path, segment, offset, reason)
        self._findings.append(Finding("store.messages_lost", path, segment, offset, 0, reason))
