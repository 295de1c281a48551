"""Class names are unique, so that a search for a class finds the right one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

BROKER = Path(__file__).parents[2] / "broker"


def test_each_class_name_stands_once() -> None:
    """Two packages never give different classes the same name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(BROKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(BROKER)}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
