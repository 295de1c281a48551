"""Writes queue logs again from the log, for queues whose chunks are gone."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from broker.store.log_scan import LogFolder
from broker.store.queue_log import Entry, QueueLogs
from broker.store.record import (
    HEAD,
    HEAD_BYTES,
    INNER,
    LENGTH_MIN,
    MESSAGE,
    MOVED,
    PREFIX_BYTES,
    TARGET,
    TRANSACTION,
)
from broker.store.replay import Stop, cut
from broker.store.segment import HEADER_BYTES
from broker.store.window import QueueReplay

__all__ = ["EntryRebuild"]

GATHERED_MAX: Final = 100_000  # entries held before they are written


class EntryRebuild:
    """Takes records of the whole log and keeps where the unsettled messages of some queues lie; the last place counts.

    Shapes: ``entries`` counts what was written; ``damage`` names the places that could not be read, with the reasons.
    """

    def __init__(self, logs: QueueLogs, queues: dict[int, QueueReplay]) -> None:
        self._logs = logs
        self._gathered: dict[tuple[int, int], Entry] = {}
        self.queues = queues
        self.entries = 0
        self.damage: list[tuple[int, int, str]] = []

    def walk(self, log: LogFolder) -> None:
        """Takes the messages of the whole log, those behind damage too, and writes their entries.

        Raises: StoreFailed.
        """
        for number in log.segments:
            offset, reason = log.scan(number, HEADER_BYTES, self, _untold)
            while reason:
                self.damage.append((number, offset, reason))
                offset, reason = log.scan(number, log.resume(number, offset, inner=True), self, _untold)
        self.finish()

    def run(self, block: bytes, base: int) -> Stop:
        """Takes the messages of a block.

        A record of a transaction counts whether all of that is whole or not: the slots say which of its messages were
        taken.
        """
        view = memoryview(block)
        at = 0
        while at + HEAD_BYTES <= len(block):
            length, checksum, _, _, kind, _, _, _, targets_bytes = HEAD.unpack_from(block, at)
            end = at + PREFIX_BYTES + length
            if end > len(block) or length < LENGTH_MIN:
                break
            if crc32c(view[at + PREFIX_BYTES : end]) != checksum:
                return Stop(at, "the checksum is wrong", 0)
            if kind == TRANSACTION:
                at += HEAD_BYTES  # it is whole: its records are walked like others
                continue
            if kind & ~INNER in (MESSAGE, MOVED):
                targets_at = at + HEAD_BYTES
                for number, message_id in TARGET.iter_unpack(block[targets_at : targets_at + targets_bytes]):
                    queue = self.queues.get(number)
                    if queue is not None and queue.window_of(message_id) is not None:
                        self._gathered[number, message_id] = (base + at, end - at)
            at = end
        if len(self._gathered) > GATHERED_MAX:
            self.finish()
        return cut(block, at, len(block))

    def finish(self) -> None:
        """Writes what was gathered, runs of ids with one call each."""
        gathered, self._gathered = self._gathered, {}
        self.entries += len(gathered)
        run: list[Entry] = []
        begin = (0, 0)
        for number, message_id in sorted(gathered):
            if run and (number, message_id) != (begin[0], begin[1] + len(run)):
                self._logs.write(*begin, run)
                run = []
            if not run:
                begin = (number, message_id)
            run.append(gathered[number, message_id])
        if run:
            self._logs.write(*begin, run)


def _untold(_size_bytes: int) -> None:
    """Hears of bytes that are read a second time: they are no progress."""
