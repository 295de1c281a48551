"""ARCHITECTURE.md is true, and the paths that it describes can be traced."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.house import paths

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
NAMED = re.compile(r"`((?:\w+/)*\w+(?:\.py|\.sql|/))`(?: \(((?:`[\w.]+`(?:, )?)+)\))?")
"""A file or a folder below broker/, and the functions of the file in brackets."""


@pytest.mark.interpreted("the functions are traced, which compiled ones cannot be")
def test_every_path_is_traced_and_each_of_its_rows_tells_what_it_does() -> None:
    """Each row shows the first line of its file's docstring."""
    command = [sys.executable, "-m", "tools.house", "architecture"]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert re.findall(r"^## (.+)$", printed, re.MULTILINE) == list(paths.PATHS)
    rows = re.findall(r"^\| \d+ .*$", printed, re.MULTILINE)
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_file_that_the_page_names_exists() -> None:
    """Files and folders that the page names exist below broker/, and so do the functions that it names with a file."""
    named = NAMED.findall(PAGE.read_text())
    assert len(named) > 40
    assert [path for path, _ in named if not (ROOT / "broker" / path).exists()] == []
    asked = [(path, name) for path, names in named for name in re.findall(r"[\w.]+", names) if path.endswith(".py")]
    assert len(asked) > 5
    assert [(path, name) for path, name in asked if name not in set(defined(ROOT / "broker" / path))] == []


def defined(path: Path) -> Iterator[str]:
    """Yield the functions and classes of a file: a method by itself and with its class."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef))
