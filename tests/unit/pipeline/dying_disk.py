"""A lake's disk that simulates the death of the process at the n-th file call, optionally with a power loss."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import BinaryIO

from broker.pipeline.lake.place import Disk


class Died(BaseException):
    """The process died during a file call; `except Exception` does not catch this."""


class DyingDisk(Disk):
    """Real files whose calls fail with Died from a given call on.

    Shapes: ``calls`` counts the calls that change the disk; call number ``dies_at`` and all later ones raise Died and
    have no effect. `lose_power` then damages unsynced files, but not those in ``durable``, a set that several disks can
    share.
    """

    def __init__(self, dies_at: int | None = None, durable: set[Path] | None = None) -> None:
        self.calls = 0
        self.dead = False
        self._dies_at = dies_at
        self._unsynced_files: set[Path] = set()
        self._unsynced_names: dict[Path, None] = {}  # created since their folder was synced
        self._durable = set() if durable is None else durable

    def _step(self) -> None:
        if self.calls == self._dies_at:
            self.dead = True
        self.calls += 1
        if self.dead:
            raise Died

    def create(self, path: Path) -> BinaryIO:
        self._step()
        file = super().create(path)
        self._unsynced_files.add(path)
        self._unsynced_names[path] = None
        return file

    def sync(self, file: BinaryIO) -> None:
        self._step()
        super().sync(file)
        self._unsynced_files.discard(Path(file.name))

    def sync_file(self, path: Path) -> None:
        self._step()
        super().sync_file(path)
        self._unsynced_files.discard(path)
        self._durable.add(path)

    def sync_folder(self, folder: Path) -> None:
        self._step()
        super().sync_folder(folder)
        for path in [path for path in self._unsynced_names if path.parent == folder]:
            del self._unsynced_names[path]

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)
        self._unsynced_names[target] = None

    def remove(self, path: Path) -> bool:
        self._step()
        return super().remove(path)

    def lose_power(self, random: Random, lake: Path) -> None:
        """Lose random names and bytes that were never synced."""
        for path in sorted({*lake.glob("*/_delta_log/*.*"), *lake.glob("*/date=*/part-*")} - self._durable):
            if random.random() < 0.5:
                path.write_bytes(path.read_bytes()[: random.randrange(100) * random.randrange(2)])
            elif random.random() < 0.5:
                path.unlink()
            self._durable.add(path)
        for path in self._unsynced_names:
            if random.random() < 0.5:
                path.unlink(missing_ok=True)
        for path in self._unsynced_files:
            if path.exists() and random.random() < 0.5:
                path.write_bytes(path.read_bytes()[: random.randrange(100)])
