"""Reads the JSON log of a Delta table by its specification, without the package that wrote it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DeltaTableLog", "messages_of", "orphans_of", "rows_of"]

LOG = "_delta_log"


@dataclass
class DeltaTableLog:
    """The state of a table after all its log entries, none of which may be missing."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # the actions `add`, by path
    removed: set[str] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    entries: int = 0

    @classmethod
    def read(cls, table: Path) -> DeltaTableLog:
        """Read all entries of a table's log."""
        made = cls()
        for path in sorted((table / LOG).glob("*.json")):
            assert int(path.stem) == made.entries, path
            made.entries += 1
            for line in path.read_text(encoding="utf-8").splitlines():
                made._apply(json.loads(line))
        return made

    def _apply(self, action: dict[str, Any]) -> None:
        match action:
            case {"add": {"path": path} as added}:
                self.files[path] = added
            case {"remove": {"path": path}}:
                del self.files[path]
                self.removed.add(path)
            case {"txn": {"appId": name, "version": version}}:
                self.transactions[name] = version


def rows_of(table: Path, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of a table's files, and check the row count of each file's entry."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for path, added in sorted(DeltaTableLog.read(table).files.items()):
        rows = pq.ParquetFile(table / path).read(columns=list(columns) or None).to_pylist()
        stats = json.loads(added["stats"])
        assert (len(rows), (table / path).stat().st_size) == (stats["numRecords"], added["size"])
        found += rows
    return found


def messages_of(lake: Path, column: str = "offset") -> list[Any]:
    """Return a column of a lake's messages, sorted."""
    return sorted(row[column] for row in rows_of(lake / "messages", column))


def orphans_of(table: Path) -> set[str]:
    """Return the Parquet files in a table's folder that no entry adds."""
    log = DeltaTableLog.read(table)
    existing = {path.relative_to(table).as_posix() for path in table.rglob("date=*/*.parquet")}
    return existing - set(log.files) - log.removed
