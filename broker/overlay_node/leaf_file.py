"""The file `overlay` of a data folder: the state of this process's leaf that must survive a restart, besides its
streams. As in the seal log, a line is JSON, a tab and a checksum. Its key "k" is the kind:

    leaf            the first line: format, leaf
    change          time_bound; points: start points of durable bindings by their ids; gone: ids of removed ones

A batch of changes is one line, which is on disk before anything depends on it; so a crash tears at most the last line.
The first batch of each run rewrites the file. So does a batch after which the file would be larger than twice its size
after the last rewrite, plus 64 KiB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from broker.event_log import get_logger
from broker.slot_files.seal_log import BadSealLine, decode_lines, encode_line
from broker.store.damage import CorruptFile, NewerFormat
from broker.store.files import File, Files

FORMAT: Final = 1
GROWTH_MIN_BYTES: Final = 65_536
LINE_BINDINGS: Final = 1_000

_log = get_logger()


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """The stored state of a leaf: a bound above all virtual times ever sent, and its durable bindings' start points."""

    time_bound: int = 0
    start_points: Mapping[str, int] = field(default_factory=dict)


class LeafFile:
    """The file of one data folder. All methods are *blocking*, and called by one thread at a time.

    Invariant: after StoreFailed nothing more may be written.
    Cost: O(batch) for a write; over many batches, rewrites at most triple that.
    """

    def __init__(self, files: Files, folder: Path, leaf: str) -> None:
        self._files = files
        self._leaf = leaf
        self._points: dict[str, int] = {}
        self._file: File | None = None
        self._size_bytes = self._rewrite_at_bytes = 0
        self.path = folder / "overlay"

    def read(self) -> StoredLeaf:
        """Return the stored state. A leaf with another name than the stored one gets only the time bound.

        Raises: NewerFormat; CorruptFile; StoreFailed.
        """
        if not self._files.exists(self.path):
            return StoredLeaf()
        block = self._files.read(self.path)
        try:
            (head, *changes), good_bytes = decode_lines(block)
            if head["format"] > FORMAT:
                raise NewerFormat(self.path, head["format"], FORMAT)
            time_bound = max([0, *(change["time_bound"] for change in changes)])
            points: dict[str, int] = {}
            for change in changes:
                for binding in change["gone"]:
                    points.pop(binding, None)
                points.update(change["points"])
        except (BadSealLine, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(self.path, f"it is not the state of an overlay's leaf: {error}") from error
        if good_bytes < len(block):
            _log.warning("overlay.tail_cut", path=str(self.path), bytes=len(block) - good_bytes)
        return StoredLeaf(time_bound, points if head["leaf"] == self._leaf else {})

    def write(self, time_bound: int, points: Mapping[str, int], gone: Collection[str]) -> None:
        """Write a batch. The first batch replaces the contents of the file. Raises: StoreFailed."""
        for binding in gone:
            self._points.pop(binding, None)
        self._points.update(points)
        line = encode_line("change", {"time_bound": time_bound, "points": dict(points), "gone": list(gone)})
        if self._file is None or self._size_bytes + len(line) > self._rewrite_at_bytes:
            self._rewrite(time_bound)
        else:
            self._file.write_at(self._size_bytes, line)
            self._file.sync()
            self._size_bytes += len(line)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rewrite(self, time_bound: int) -> None:
        """Replace the file with one that contains only the current state."""
        file = self._files.replace(self.path, self._lines(time_bound))
        self.close()
        self._file, self._size_bytes = file, file.size()
        self._rewrite_at_bytes = 2 * self._size_bytes + GROWTH_MIN_BYTES

    def _lines(self, time_bound: int) -> Iterator[bytes]:
        yield encode_line("leaf", {"format": FORMAT, "leaf": self._leaf})
        left = iter(self._points.items())
        while True:
            points = dict(islice(left, LINE_BINDINGS))
            yield encode_line("change", {"time_bound": time_bound, "points": points, "gone": []})
            if len(points) < LINE_BINDINGS:
                return
