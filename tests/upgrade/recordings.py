"""Recorded data folders and lakes, packed and unpacked."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, Final

__all__ = ["CLEAN", "FORMATS", "HERE", "KILLED", "expected", "pack", "unpack"]

HERE: Final = Path(__file__).parent
CLEAN, KILLED = "clean", "killed"
FORMATS: Final = tuple(sorted(path.name for path in HERE.glob("format-*")))


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder, without sockets."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(folder.rglob("*")):
            if not path.is_socket():
                packed.add(path, path.relative_to(folder), recursive=False, filter=_without_owner)


def unpack(recorded: str, name: str, folder: Path) -> Path:
    """Unpack a recording into a new folder, and return the folder."""
    with tarfile.open(HERE / recorded / f"{name}.tar.xz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
        packed.extractall(folder)
    return folder


def expected(recorded: str, name: str) -> dict[str, Any]:
    """Return the recorded content of a folder."""
    found: dict[str, Any] = json.loads((HERE / recorded / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
