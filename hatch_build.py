"""Builds the wheel, with the hot modules compiled if possible, else in pure Python."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from compiled_build import SWITCH, CompileError, build, wanted


class CompiledBuild(BuildHookInterface[Any]):
    """Compiles into a temporary folder, and adds the result to the wheel."""

    def dependencies(self) -> list[str]:
        """Return the dependencies of compiling; none if it is switched off.

        They include the package's own dependencies: mypyc stops at an import that it does not find.
        """
        if not wanted() or self.target_name != "wheel":
            return []
        core = self.metadata.core
        return [*core.optional_dependencies["compile"], *core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel only points at the sources (editable) or the environment forbids it."""
        if version != "standard" or not wanted():
            return
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        try:
            made = build(Path(self.root), folder)
        except CompileError as error:
            self.app.display_warning(f"building pure Python, a little slower: {error} ({SWITCH}=0 does not try)")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in made:
            build_data["force_include"][str(path)] = str(path.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
