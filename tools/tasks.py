"""Refuse tasks without an owner: `python -m tools.tasks`, part of `make lint`.

The exception of a task without an owner is lost, and whatever waits for its work waits for ever. `broker/tasks.py`
starts all tasks except those of an `asyncio.TaskGroup`, which belong to their group.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
OWNER: Final = "tasks.py"
STARTS: Final = {"create_task", "ensure_future"}


def unowned(source: str) -> Iterator[int]:
    """Yield the lines that start a task outside a task group."""
    tree = ast.parse(source)
    groups = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and ast.unparse(item.context_expr) == "asyncio.TaskGroup()"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in STARTS:
            if not (isinstance(node.value, ast.Name) and node.value.id in groups):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and any(name.name in STARTS for name in node.names):
            yield node.lineno


def main() -> int:
    """Print each such line, and return 1 if there is one."""
    found = 0
    for path in sorted((ROOT / "broker").rglob("*.py")):
        if path == ROOT / "broker" / OWNER:
            continue
        for line in unowned(path.read_text("utf-8")):
            print(f"{path.relative_to(ROOT)}:{line}: start it with broker.tasks.Tasks, which reports its failure")
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
