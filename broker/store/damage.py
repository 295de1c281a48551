"""What can be wrong with a data folder, each with what the operator needs to know.

A checksum mismatch below the last synced position stops the start; it is never repaired by deleting.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from broker.amqp.errors import BrokerError, Fatal

__all__ = [
    "CorruptFile",
    "CorruptRecord",
    "CorruptStore",
    "Finding",
    "FolderBusy",
    "FolderUnwritable",
    "NewerFormat",
    "NoDataFolder",
    "StoreFailed",
]


class StoreFailed(Fatal):
    """Says that a file call failed, after which nothing may be confirmed any more.

    A write or sync that failed is not tried again: the kernel may have dropped the dirty pages, so a second sync could
    succeed falsely. Who caught it before anything was promised (a vhost that cannot be made, a backup, a tap's slot
    file) may refuse the request instead.
    """

    def __init__(self, path: object, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class CorruptStore(StoreFailed):
    """Says that something which had been synced is not there any more, and where.

    Units: ``segment`` is a log file's number, ``offset`` bytes from its beginning.
    """

    def __init__(self, path: Path, segment: int, offset: int, reason: str) -> None:
        self.segment = segment
        self.offset = offset
        super().__init__(path, f"segment {segment}, offset {offset}: {reason}")


class CorruptRecord(CorruptStore):
    """Says that a record that was asked for is not what was written."""


class CorruptFile(StoreFailed):
    """Says that a small file, which is read as a whole, is not what was written."""


class FolderBusy(BrokerError):
    """Says that another broker works in the data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"{folder}: another broker is using this data folder")


class FolderUnwritable(BrokerError):
    """Says that the data folder cannot be made or written."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(f"{folder}: the data folder cannot be written: {reason}")


class NoDataFolder(BrokerError):
    """Says that a folder, or what its file `format` names, is no data folder that a broker may open."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(f"{folder}: not a data folder: {reason}")


class NewerFormat(BrokerError):
    """Says that a later version wrote a file or folder: it is intact, and this version must leave it alone.

    Shapes: ``number`` is the format found, ``known`` the highest one that this version reads; ``noun`` says what else
        than a format they number.
    """

    def __init__(self, path: Path, number: int, known: int, noun: str = "format") -> None:
        super().__init__(f"{path}: written by a newer SlotMQ, {noun} {number}; this version reads up to {known}")


class Finding(NamedTuple):
    """One thing that recovery found and did something about; the operator is told each.

    Shapes: ``event`` is the name it is logged under: ``store.tail_cut`` (bytes that were never synced went),
        ``store.quarantined`` (synced bytes are unreadable and were skipped), ``store.checkpoint_skipped``,
        ``store.queue_logs_rebuilt``, ``store.messages_lost`` (their records are gone).
    Units: ``lost_bytes`` counts what is not used any more.
    """

    event: str
    path: Path
    segment: int
    offset: int
    lost_bytes: int
    reason: str
