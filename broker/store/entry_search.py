"""Entry search: find the records of messages in the log when their queue-log entries are missing or damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from crc32c import crc32c

from broker.store.log_scan import LogFolder
from broker.store.queue_entry import Entry
from broker.store.record import (
    DUE,
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
from broker.store.replay import ReplayEnd, cut
from broker.store.segment import HEADER_BYTES

FOUND_MAX: Final = 100_000  # once more entries than this are found, `full` is called


class EntrySearch:
    """A search of the log for the records of wanted messages; of several records of a message, the last one counts.

    Shapes: ``found`` maps (queue number, message id) to the entry, ``due_ms`` to the moment at which a delayed message
        is due; ``damage`` lists the places of the log that could not be read, with the reasons.
    """

    def __init__(self, wanted: Callable[[int, int], bool], full: Callable[[EntrySearch], None] | None = None) -> None:
        """`wanted` is called with queue number and message id; `full` is called when `found` has become large."""
        self._wanted = wanted
        self._full = full
        self.found: dict[tuple[int, int], Entry] = {}
        self.due_ms: dict[tuple[int, int], int] = {}
        self.damage: list[tuple[int, int, str]] = []

    def take_found(self) -> tuple[dict[tuple[int, int], Entry], dict[tuple[int, int], int]]:
        """Return the entries and due times found since the last call."""
        found, self.found = self.found, {}
        due_ms, self.due_ms = self.due_ms, {}
        return found, due_ms

    def walk(self, log: LogFolder, numbers: Iterable[int]) -> None:
        """Search the segments with these numbers, continuing after damage.

        Raises: StoreFailed.
        """
        for number in numbers:
            offset, reason = log.scan(number, HEADER_BYTES, self, _ignore_progress)
            while reason:
                self.damage.append((number, offset, reason))
                offset, reason = log.scan(number, log.resume(number, offset, inner=True), self, _ignore_progress)

    def run(self, block: bytes, base: int) -> ReplayEnd:
        """Search a block.

        A record of an incomplete transaction counts too: the slots say which of its messages were applied.
        """
        view = memoryview(block)
        at = 0
        while at + HEAD_BYTES <= len(block):
            length, checksum, _, _, kind, _, _, _, targets_bytes = HEAD.unpack_from(block, at)
            end = at + PREFIX_BYTES + length
            if end > len(block) or length < LENGTH_MIN:
                break
            if crc32c(view[at + PREFIX_BYTES : end]) != checksum:
                return ReplayEnd(at, "the checksum is wrong", 0)
            if kind == TRANSACTION:
                at += HEAD_BYTES  # it is intact: its records are read like others
                continue
            if kind & ~INNER in (MESSAGE, MOVED):
                targets_at = at + HEAD_BYTES
                due_ms = 0
                for number, message_id in TARGET.iter_unpack(block[targets_at : targets_at + targets_bytes]):
                    if number == DUE:
                        due_ms = message_id
                    elif self._wanted(number, message_id):
                        self.found[number, message_id] = (base + at, end - at)
                        if due_ms:
                            self.due_ms[number, message_id] = due_ms
            at = end
        if self._full is not None and len(self.found) > FOUND_MAX:
            self._full(self)
        return cut(block, at, len(block))


def _ignore_progress(_size_bytes: int) -> None:
    """Do nothing: only the replay of the log reports its progress."""
