"""ARCHITECTURE.md is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_have_every_function_of_the_four_paths() -> None:
    """The tables are those that a trace of the running broker makes, without any exception."""
    command = [sys.executable, "-m", "tools.house", "architecture", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    advice = "python -m tools.house architecture writes the tables anew"
    assert done.returncode == 0, f"{advice}:\n{done.stdout}{done.stderr}"
