"""What a table of a lake consists of: the fold of its log, and that fold as JSON, a snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.entry import LOG_FORMAT, Branch, Entry, LakeFile

__all__ = ["LakeState"]

SNAPSHOT: Final = "snapshot"


class LakeState:
    """The fold of entries, in whatever order they come.

    Shapes: ``files`` by path; ``removed`` is when a path was taken away; ``archived`` is the highest seal that the
        table holds of a tap, by the start of the broker that wrote it; ``covered`` is up to which batch a query's
        entries are in, without a hole.
    Invariant: to add an entry a second time changes nothing.
    """

    def __init__(self) -> None:
        self.files: dict[str, LakeFile] = {}
        self.removed: dict[str, int] = {}
        self.archived: dict[Branch, int] = {}
        self.covered: dict[str, int] = {}
        self.entries = 0
        self._beyond: set[tuple[str, int]] = set()  # entries behind a hole

    def holds(self, query: str, batch: int) -> bool:
        """Return whether that entry is in."""
        return batch <= self.covered.get(query, -1) or (query, batch) in self._beyond

    def add(self, entry: Entry) -> None:
        """Take an entry in."""
        if self.holds(entry.query, entry.batch):
            return
        self.entries += 1
        self._cover(entry.query, entry.batch)
        for file in entry.add:
            if file.path not in self.removed:  # the entry that takes it away may come first
                self.files[file.path] = file
        for path in entry.remove:
            self.files.pop(path, None)
            self.removed[path] = entry.at_ms
        for sealed in entry.sealed:
            if sealed.seals:
                self.archived[sealed.branch] = max(self.archived.get(sealed.branch, 0), sealed.seals[-1][1])

    def _cover(self, query: str, batch: int) -> None:
        self._beyond.add((query, batch))
        following = self.covered.get(query, -1) + 1
        while (query, following) in self._beyond:
            self._beyond.discard((query, following))
            self.covered[query] = following
            following += 1

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return sum(file.rows for file in self.files.values())

    @property
    def dense(self) -> bool:
        """Return whether the entries have no hole; what was listed while the folder grew may have some."""
        return not self._beyond

    def forget(self, paths: Iterable[str]) -> None:
        """Drop what is told of files that were taken away and are gone."""
        for path in paths:
            self.removed.pop(path, None)

    def to_json(self) -> bytes:
        """Return the snapshot. Invariant: the state is dense."""
        assert self.dense
        made = {
            "format": LOG_FORMAT,
            "kind": SNAPSHOT,
            "entries": self.entries,
            "covered": self.covered,
            "archived": [[*tap, seal, start] for (*tap, start), seal in self.archived.items()],
            "removed": self.removed,
            "files": [file.to_json() for file in self.files.values()],
        }
        return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, block: bytes, name: str) -> LakeState:
        """Return the state of a snapshot. Raises: LakeRefused when it is of a later format, or none."""
        try:
            found = json.loads(block)
            if found["format"] > LOG_FORMAT:
                raise LakeRefused(f"{name} is of format {found['format']}, this version reads up to {LOG_FORMAT}")
            state = cls()
            state.entries = found["entries"]
            state.covered = dict(found["covered"])
            state.archived = {
                (store, vhost, tap, start[0] if start else None): seal
                for store, vhost, tap, seal, *start in found["archived"]
            }
            state.removed = dict(found["removed"])
            state.files = {file["path"]: LakeFile.from_json(file) for file in found["files"]}
            return state
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LakeRefused(f"{name} cannot be read: {error!r}") from error
