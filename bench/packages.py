"""Makes the package as a wheel ships it, compiled, once for as long as its sources stay what they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import compiled_build
from bench.brokers import PROJECT

_KEPT = PROJECT / "build" / "bench"
_STAMP = "sources.sha256"


def compiled_package(folder: Path = _KEPT) -> Path:
    """Return a folder with the compiled package, made anew when a source differs from what it was made of.

    Raises: compiled_build.CompileError, of which NoCompiler is one.
    """
    stamp, digest = folder / _STAMP, _digest()
    if not stamp.exists() or stamp.read_text() != digest:
        compiled_build.build(PROJECT, folder)
        stamp.write_text(digest)
    return folder


def _digest() -> str:
    """Return one for all sources of the package and for what compiles them."""
    total = hashlib.sha256()
    for path in [*sorted((PROJECT / compiled_build.PACKAGE).rglob("*.py")), PROJECT / "compiled_build.py"]:
        total.update(str(path.relative_to(PROJECT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
