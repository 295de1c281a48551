"""A disk whose free space the test sets."""

from __future__ import annotations

from pathlib import Path

from broker.store.files import Files

GIB = 1 << 30


class FillingDisk(Files):
    """Real files on a disk whose free space the test sets."""

    free = 10 * GIB

    def free_bytes(self, folder: Path) -> int:
        """Return the free space that the test sets."""
        return self.free
