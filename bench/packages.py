"""The compiled package as a wheel ships it, built once while its sources stay unchanged, or built before."""

from __future__ import annotations

import argparse
from importlib.machinery import EXTENSION_SUFFIXES
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


def package_at(text: str) -> Path:
    """Return the folder at a path that holds the compiled package, for argparse's `type`."""
    folder = Path(text).resolve()
    if not any(folder.glob(f"broker/**/*{EXTENSION_SUFFIXES[0]}")):
        raise argparse.ArgumentTypeError(f"{text} holds no compiled broker: python compiled_build.py makes one")
    return folder
