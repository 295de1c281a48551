"""Builds the wheel with the hot modules compiled, or from the sources where nothing can be compiled.

A wheel of sources contains the reason in a file, which `slotmq --version` and the broker's log repeat: pip shows no
warning of a successful build.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.compiled_build import PACKAGE, SWITCH, CompileError, NoCompiler, build, check_compiler, wanted


def obstacle() -> str | None:
    """Return the reason not to compile, None to compile."""
    if not wanted():
        return f"{SWITCH}=0" if sys.implementation.name == "cpython" else "this Python is not CPython"
    try:
        check_compiler()
    except NoCompiler as error:
        return str(error)
    return None


class CompiledBuild(BuildHookInterface[Any]):
    """Compile into a temporary folder, and add the result to the wheel."""

    def dependencies(self) -> list[str]:
        """Return the dependencies of compiling, an empty list if nothing will be compiled.

        They include the package's own dependencies, because compiled modules use types from some of them.
        """
        if self.target_name != "wheel" or obstacle():
            return []
        core = self.metadata.core
        return [*core.optional_dependencies["compile"], *core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel only points at the sources (editable). A compilation that fails ends the build."""
        if version != "standard":
            return
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        reason = obstacle()
        if reason:
            self.app.display_warning(f"building from the sources, which run slower: {reason}")
            made = [folder / PACKAGE / "interpreted.txt"]
            made[0].parent.mkdir()
            made[0].write_text(reason)
        else:
            try:
                made = build(Path(self.root), folder)
            except CompileError as error:
                self._folder.cleanup()
                self.app.abort(f"cannot compile: {error} ({SWITCH}=0 builds from the sources)")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        for path in made:
            build_data["force_include"][str(path)] = str(path.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
