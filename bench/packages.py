"""Makes the package as a wheel ships it, compiled, once for as long as its sources stay what they are."""

from __future__ import annotations

from pathlib import Path

import compiled_build
from bench.brokers import PROJECT

_KEPT = PROJECT / "build" / "bench"


def compiled_package(folder: Path = _KEPT) -> Path:
    """Return a folder with the compiled package, made anew when a source differs from what it was made of.

    Raises: compiled_build.CompileError, of which NoCompiler is one.
    """
    compiled_build.refresh(PROJECT, folder)
    return folder
