"""The store of one vhost: the facade that the floors above use (street steps 8 to 10 and 13).

A confirm may follow a record as soon as ``log.confirmable`` is past it. What a method costs the loop is said at each; those marked
*blocking* belong in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog

from broker.store.checkpoint import Checkpoint, CheckpointFolder, QueueState
from broker.store.compaction import Move, Relocation, SlotReference, append_relocation, plan_relocation
from broker.store.files import Files
from broker.store.message_log import MessageLog
from broker.store.queue_log import Entry, QueueLogs
from broker.store.reading import SlotReader
from broker.store.record import HEAD_BYTES, StoredMessage
from broker.store.recovery import Recovered, RecoveryProgress, recover
from broker.store.segment import HEADER_BYTES
from broker.store.spill import Spill, is_spilled

__all__ = ["VhostStore"]

_log = structlog.get_logger()
_RUNNING: Final = "running"  # a file that is there while a broker works in the folder: an unclean stop leaves it


class VhostStore:
    """One vhost's durable log, its spill, its queue logs and its checkpoints.

    Shapes: ``log`` takes durable records, ``spill`` those of transient messages that must leave memory.
    """

    def __init__(
        self, files: Files, folder: Path, log: MessageLog, spill: Spill, queues: QueueLogs, checkpoints: CheckpointFolder
    ) -> None:
        self.log = log
        self.spill = spill
        self._files = files
        self._folder = folder
        self._queues = queues
        self._checkpoints = checkpoints
        self._relocation: Relocation | None = None
        self._checkpoint_position = 0  # of the last durable checkpoint

    @classmethod
    def open(
        cls,
        files: Files,
        folder: Path,
        *,
        segment_bytes: int,
        sync: bool,
        progress: Callable[[RecoveryProgress], None] = lambda progress: None,
        quarantine: bool = False,
        window_messages: int = 1000,
        window_bytes: int = 1 << 20,
    ) -> tuple[VhostStore, Recovered]:
        """Recovers what the folder holds and returns the store, ready to append, with what it recovered. *Blocking.*

        The slots recovered are counted as live already. Each finding of recovery was logged.
        Raises: CorruptStore when something that had been synced is damaged or missing; StoreFailed.
        """
        raise NotImplementedError
