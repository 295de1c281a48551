"""Refuse to import a module from its source where it is compiled. Python imports this file first, in every process.

`make test` copies it beside the compiled modules: a process with the checkout before them on its path would test the
sources.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


class CompiledOnly(MetaPathFinder):
    """Finds no module, but checks which one another finder would find."""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Raise ImportError for a source whose compiled module is in this folder."""
        if not name.startswith("broker."):
            return None
        compiled = HERE / (name.replace(".", "/") + EXTENSION_SUFFIXES[0])
        spec = PathFinder.find_spec(name, path) if compiled.exists() else None
        if spec is not None and spec.origin != str(compiled):
            raise ImportError(f"{name} is {spec.origin} in this process, and {compiled} is to be tested")
        return None


sys.meta_path.insert(0, CompiledOnly())
