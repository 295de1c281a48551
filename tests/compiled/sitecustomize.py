"""Refuse to import a module from its source where it is compiled. Python imports this file first, in every process.

`make test` puts it beside the compiled modules: a process that has them on its path, and finds the checkout before
them, would test the sources.
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
    """Finds no module; looks at what would be found."""

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
