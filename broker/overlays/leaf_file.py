"""The file `overlay` of a data folder: what the leaf of this process must find again besides its streams.

It is JSON in UTF-8 behind one line: `slotmq overlay, format 1, crc32c <8 hex digits>`; the checksum covers what follows
the line. The file is replaced as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from broker.store.damage import CorruptFile, NewerFormat
from broker.store.files import Files
from broker.store.whole_file import replace_file

__all__ = ["LeafFile", "LeafNote"]

FORMAT: Final = 1
_HEAD: Final = re.compile(rb"slotmq overlay, format (\d{1,9}), crc32c ([0-9a-f]{8})\n")


@dataclass(frozen=True, slots=True)
class LeafNote:
    """The name of a leaf, a bound above all virtual times that it told, and its durable bindings' start points."""

    leaf: str
    time_bound: int = 0
    start_points: Mapping[str, int] = field(default_factory=dict)


class LeafFile:
    """The file of one data folder."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self.path = folder / "overlay"

    def read(self, leaf: str) -> LeafNote:
        """Return what a leaf of that name noted last; one of another name begins anew, above its time.

        Raises: NewerFormat; CorruptFile; StoreFailed.
        """
        if not self._files.exists(self.path):
            return LeafNote(leaf)
        block = self._files.read(self.path)
        head = _HEAD.match(block)
        if head is None:
            raise CorruptFile(self.path, "its first line is not that of an overlay's state")
        if int(head[1]) > FORMAT:
            raise NewerFormat(self.path, int(head[1]), FORMAT)
        content = block[head.end() :]
        if int(head[2], 16) != crc32c(content):
            raise CorruptFile(self.path, "the checksum is wrong")
        written = json.loads(content)
        points = written["start_points"] if written["leaf"] == leaf else {}
        return LeafNote(leaf, written["time_bound"], points)

    def write(self, note: LeafNote) -> None:
        """Replace what is noted. *Blocking.* Raises: StoreFailed."""
        written = {"leaf": note.leaf, "time_bound": note.time_bound, "start_points": dict(note.start_points)}
        content = json.dumps(written, separators=(",", ":")).encode()
        replace_file(self._files, self.path, b"slotmq overlay, format 1, crc32c %08x\n" % crc32c(content) + content)
