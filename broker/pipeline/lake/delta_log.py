"""The log of a Delta table on a local disk, with the syncs that the Delta package omits.

The package renames an entry into place without a sync. Here an entry and the files that it adds are synced before a
commit returns, and before another commit follows. So a power loss can damage only the newest entries, and `repair`
removes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from broker.pipeline.lake.place import Disk

LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
CHECKPOINT: Final = ".checkpoint.parquet"
PARQUET_MAGIC: Final = b"PAR1"


class DeltaLog:
    """The log of a table. If it is not `local`, it is in a bucket, where written objects are complete and durable."""

    def __init__(self, table: Path, disk: Disk, *, local: bool) -> None:
        self._table = table
        self._folder = table / LOG
        self._local = local
        self._disk = disk

    def sync(self, version: int, after: int = -1) -> None:
        """Sync an entry and the files that it adds, and all earlier entries that may not be on disk.

        A killed compaction, for example, may leave such an entry. Shapes: the entries up to `after` are on disk.
        """
        for path in reversed(list(self._unsynced(version, after))):
            for action in _actions(self._disk.read(path)):
                added = self._table / unquote(action["add"]["path"]) if "add" in action else None
                if added is not None and added.exists():  # it may have been replaced and removed since
                    self._disk.sync_file(added)
                    self._disk.sync_folder(added.parent)
            self._disk.sync_file(path)
        if self._local:
            self._disk.sync_folder(self._folder)

    def _unsynced(self, version: int, after: int) -> Iterator[Path]:
        """Yield the entries that may not be on disk, the newest first; those before an archive's entry are on disk."""
        for number in range(version if self._local else after, after, -1):
            path = self._folder / f"{number:020}.json"
            if not path.exists():  # a checkpoint has replaced it
                return
            yield path
            if self._is_from_archive(path.name):
                return

    def written_ms(self, version: int) -> float | None:
        """Return when an entry was written, in milliseconds since 1970, or None if it is unknown."""
        return self._disk.written_ms(self._folder / f"{version:020}.json")

    def sync_checkpoint(self) -> None:
        """Sync the checkpoints; until this returns, the entries that they replace must not be removed."""
        if self._local:
            for name in self._names():
                if name.endswith(CHECKPOINT) or name == LAST_CHECKPOINT:
                    self._disk.sync_file(self._folder / name)
            self._disk.sync_folder(self._folder)

    def repair(self) -> list[str]:
        """Remove what a power loss damaged in the log, and all later entries; return the names of the files."""
        if not self._local:
            return []
        removed = {name for name in self._names() if name.endswith(CHECKPOINT) and not self._is_complete(LOG, name)}
        if LAST_CHECKPOINT in self._names() and (
            removed or not _is_json(self._disk.read(self._folder / LAST_CHECKPOINT))
        ):
            removed.add(LAST_CHECKPOINT)
        entries = [name for name in self._names() if name.endswith(".json") and name[:-5].isdecimal()]
        later: set[str] = set()
        for at in range(len(entries) - 1, -1, -1):
            if self._is_torn(entries[at], later):
                removed |= set(entries[at:])
            elif self._is_from_archive(entries[at]):
                break  # when it was written, all earlier entries were on disk
        for name in sorted(removed, reverse=True):
            self._disk.remove(self._folder / name)
        if removed:
            self._disk.sync_folder(self._folder)
        return sorted(removed)

    def _names(self) -> list[str]:
        return self._disk.list(self._folder)

    def _is_torn(self, name: str, later: set[str]) -> bool:
        """Return whether an entry is incomplete, or replaces files that still exist by incomplete files.

        An entry that only adds files is not examined further, because an archive syncs its files before their entry.
        Shapes: `later` are the files that later entries removed, and that a vacuum may have deleted. If the entry is
            complete, the files that it removes are added to `later`.
        """
        try:
            actions = list(_actions(self._disk.read(self._folder / name)))
        except ValueError:
            return True
        adds, removes = ([action[kind] for action in actions if kind in action] for kind in ("add", "remove"))
        if not removes:
            return not actions
        paths = {unquote(one["path"]) for one in removes}
        made = [(unquote(one["path"]), one["size"]) for one in adds]
        if all(path in later or self._is_complete("", path, size) for path, size in made):
            later |= paths
            return False
        return all((self._table / path).exists() for path in paths)

    def _is_from_archive(self, name: str) -> bool:
        found = _actions(self._disk.read(self._folder / name))
        return any("slotmq" in action.get("commitInfo", ()) for action in found)

    def _is_complete(self, folder: str, name: str, size: int | None = None) -> bool:
        try:
            block = self._disk.read(self._table / folder / name)
        except FileNotFoundError:
            return False
        return size in (None, len(block)) and block[-4:] == PARQUET_MAGIC


def _actions(block: bytes) -> Iterator[Mapping[str, Any]]:
    return (json.loads(line) for line in block.splitlines() if line)


def _is_json(block: bytes) -> bool:
    try:
        json.loads(block)
    except ValueError:
        return False
    return True
