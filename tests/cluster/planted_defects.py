"""Defects that someone might make in the cluster or the overlay, and the tests that must catch each of them.

Each is one replacement in one file, in a copy of the project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.defect import Defect
from tests.cluster.node_defects import NODE_DEFECTS
from tests.cluster.sql_defects import SQL_DEFECTS
from tests.overlay.overlay_defects import OVERLAY_DEFECTS

PROJECT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = ("broker", "tests", "tools", "bench", "demo", "docs", "config", "pyproject.toml", "pytest_slotmq.py")
TEST_S: Final = 600
ALL_TESTS_S: Final = 3600

DEFECTS: Final = (*SQL_DEFECTS, *NODE_DEFECTS, *OVERLAY_DEFECTS)


def matches(defect: Defect, folder: Path = PROJECT) -> int:
    """Return how often the text that a defect replaces occurs."""
    return (folder / defect.path).read_text(encoding="utf-8").count(defect.old)


def copy_project(folder: Path) -> None:
    """Copy the files that the tests need."""
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, folder / name)


def plant(defect: Defect, folder: Path) -> None:
    """Make the replacement in a copy."""
    file = folder / defect.path
    file.write_text(file.read_text(encoding="utf-8").replace(defect.old, defect.new), encoding="utf-8")


def failures(tests: Sequence[str], folder: Path, timeout_s: float = TEST_S) -> str:
    """Run tests in a copy until one fails; return the lines that name failures, "" when all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "\n".join(lines) or (done.stdout + done.stderr)[-2000:]
