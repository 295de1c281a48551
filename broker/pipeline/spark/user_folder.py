"""The user's cache folder, in which the pipeline keeps launchers and logs."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["cache_folder", "is_kept"]


NAME: Final = "slotmq"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder, which exists; a folder of this process if the user's is not writable."""
    made = _users(environment) / NAME
    try:
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return _own()
    return made if os.access(made, os.W_OK | os.X_OK) else _own()


def is_kept(folder: Path) -> bool:
    """Return whether a cache folder is the user's, which outlives this process."""
    return folder.name == NAME


def _users(environment: Mapping[str, str]) -> Path:
    named = environment.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named)
    home = Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - never raises
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


@cache
def _own() -> Path:
    made = tempfile.mkdtemp(prefix="slotmq-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
