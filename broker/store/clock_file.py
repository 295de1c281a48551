"""The file `clock` of a data folder: the difference between the broker's clock and the system clock.

It is one line: `slotmq clock, format 1, ahead <ms> ms, seen <ms> ms, crc32c <8 hex digits>`; the checksum covers the
text before its comma. The file is replaced as a whole. Without the file, as in a new folder, there is no difference.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from broker.store.damage import CorruptFile, NewerFormat
from broker.store.files import Files

FORMAT: Final = 1
_HEAD: Final = re.compile(rb"slotmq clock, format (\d{1,9}),")
_LINE: Final = re.compile(
    rb"(slotmq clock, format 1, ahead (-?\d{1,18}) ms, seen (\d{1,18}) ms), crc32c ([0-9a-f]{8})\n"
)


class ClockState(NamedTuple):
    """The state of the broker's clock.

    Units: milliseconds; ``ahead_ms`` is how far it was ahead of the system clock, ``seen_ms`` its reading then.
    """

    ahead_ms: int = 0
    seen_ms: int = 0


class ClockFile:
    """The file of one data folder."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self.path = folder / "clock"

    def read(self) -> ClockState:
        """Return the state written last, or zeros if there is none. Raises: NewerFormat; CorruptFile; StoreFailed."""
        if not self._files.exists(self.path):
            return ClockState()
        block = self._files.read(self.path)
        head = _HEAD.match(block)
        if head is not None and int(head[1]) > FORMAT:
            raise NewerFormat(self.path, int(head[1]), FORMAT)
        line = _LINE.fullmatch(block)
        if line is None or crc32c(line[1]) != int(line[4], 16):
            raise CorruptFile(
                self.path,
                "it is damaged; remove it to use the system's clock, which may expire messages early or late",
            )
        return ClockState(int(line[2]), int(line[3]))

    def write(self, state: ClockState) -> None:
        """Replace the file; on return it is on disk. *Blocking.* Raises: StoreFailed."""
        line = b"slotmq clock, format %d, ahead %d ms, seen %d ms" % (FORMAT, *state)
        self._files.replace(self.path, [b"%b, crc32c %08x\n" % (line, crc32c(line))]).close()
