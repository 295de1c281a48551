"""Builds the compiled package as a wheel ships it, once while its sources stay unchanged."""

from __future__ import annotations

from pathlib import Path

import compiled_build
from bench.brokers import PROJECT

_KEPT = PROJECT / "build" / "bench"


def compiled_package(folder: Path = _KEPT) -> Path:
    """Return a folder with the compiled package, rebuilt when a source has changed.

    Raises: compiled_build.CompileError, including NoCompiler.
    """
    compiled_build.refresh(PROJECT, folder)
    return folder
