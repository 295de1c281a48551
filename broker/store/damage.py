"""The failures of a data folder, each with the facts that the operator needs.

A checksum mismatch below the last synced position stops the start; with quarantine, it is logged and skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from broker.amqp.errors import BrokerError, Fatal, NotNow
from broker.event_log import get_logger

SECTOR_BYTES: Final = 4096  # of current disks, and the minimum that the page cache reads
FAILURES_MAX: Final = 256  # each takes seconds, so a dead disk is not read sector by sector
_log = get_logger()


def read_around(read: Callable[[int, int], bytes], offset: int, size: int) -> tuple[bytes, str]:
    """Return `size` bytes from `offset`, fewer at the end of the file, and the error of unreadable bytes.

    Shapes: read(offset, size) raises StoreFailed. Unreadable bytes become zeros; without any, the error is empty.
    Cost: one call, and O(log(size)) for each bad sector; after FAILURES_MAX failures, pieces are not split further.
    """
    pieces: list[bytes] = []
    reason = ""
    failures = 0
    left = [(offset, size)]
    while left:
        at, length = left.pop()
        middle = (at + length // 2) // SECTOR_BYTES * SECTOR_BYTES
        middle = middle if middle > at else (at // SECTOR_BYTES + 1) * SECTOR_BYTES
        try:
            block = read(at, length)
        except StoreFailed as error:
            failures += 1
            if middle < at + length and failures < FAILURES_MAX:
                left += [(middle, at + length - middle), (at, middle - at)]
                continue
            reason = error.reason
            block = bytes(length)
        pieces.append(block)
        if len(block) < length:
            break
    return b"".join(pieces), reason


class StoreFailed(Fatal):
    """A file call failed; nothing may be confirmed after it.

    A failed write or sync is not retried: the kernel may have dropped the dirty pages, so a second sync could falsely
    succeed. A caller that has promised nothing yet (a vhost that cannot be created, a backup, a slot file) may refuse
    the request instead.
    """

    def __init__(self, path: object, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class CorruptStore(StoreFailed):
    """Synced bytes are missing or damaged.

    Units: ``segment`` is a log file's number, ``offset`` bytes from its beginning.
    """

    def __init__(self, path: Path, segment: int, offset: int, reason: str) -> None:
        self.segment = segment
        self.offset = offset
        super().__init__(path, f"segment {segment}, offset {offset}: {reason}")


class CorruptRecord(CorruptStore):
    """The record of a message is missing, or differs from what was written."""


class CorruptFile(StoreFailed):
    """A small file, which is read as a whole, differs from its written content or does not fit the other files."""


class MissingData(StoreFailed):
    """A file or folder of the data folder is missing."""


def note_missing(path: Path, what: str, *, quarantine: bool) -> None:
    """Refuse to continue without a file or folder; with quarantine, log the loss instead.

    Raises: MissingData.
    """
    if not quarantine:
        raise MissingData(path, f"it is missing, {what}")
    _log.error("store.missing", path=str(path), reason=f"it is missing, {what}")


class FolderBusy(NotNow):
    """Another broker uses the data folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: another broker is using this data folder")


class FolderUnwritable(BrokerError):
    """The data folder cannot be created, locked, read or written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: the data folder cannot be written: {reason}")


class NoDataFolder(BrokerError):
    """The folder is not a data folder that a broker may open; its file `format` says so, or is missing."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: not a data folder: {reason}")


class LinkedFolder(BrokerError):
    """The data folder contains a symbolic link, which may lead to files of other users."""


class NewerFormat(BrokerError):
    """A later version wrote the file or folder: it is intact, and this version must not change it.

    Shapes: ``number`` is the format found, ``known`` the highest one that this version reads; ``noun`` is the
        word for what is numbered, such as "record kind".
    """

    def __init__(self, path: Path, number: int, known: int, noun: str = "format") -> None:
        super().__init__(f"{path}: written by a newer SlotMQ, {noun} {number}; this version reads up to {known}")


class OlderFormat(BrokerError):
    """A version that was never released wrote the folder: this version cannot read it, and must not change it.

    Shapes: ``number`` is the format found, ``known`` the one that this version reads.
    """

    def __init__(self, path: Path, number: int, known: int) -> None:
        super().__init__(f"{path}: written by an older SlotMQ, format {number}; this version reads only {known}")


class Finding(NamedTuple):
    """A problem that recovery found and handled; each is logged.

    Shapes: ``event`` is the name it is logged under: ``store.tail_cut`` (unsynced bytes were removed),
        ``store.quarantined`` (synced bytes are unreadable and were skipped), ``store.checkpoint_skipped``,
        ``store.queue_logs_rebuilt``, ``store.messages_lost`` (their records are missing).
    Units: ``lost_bytes`` counts bytes that are no longer used.
    """

    event: str
    path: Path
    segment: int
    offset: int
    lost_bytes: int
    reason: str
