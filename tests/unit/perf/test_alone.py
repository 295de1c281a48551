"""The load generator uses only the standard library, so that it measures any broker from any machine."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

BROKER = Path(__file__).parents[3] / "broker"
ALSO = {"perf/relay.py": {"uvloop"}}  # a separate process, which measures what an event loop costs


def imported(source: str) -> set[str]:
    """Return the packages that a source imports; ours are named like `broker.perf`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {".".join(name.split(".")[:2]) if name.startswith("broker") else name.split(".")[0] for name in names}


MODULES = sorted(
    path.relative_to(BROKER).as_posix() for package in ("perf", "figures") for path in (BROKER / package).rglob("*.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_needs_nothing_but_python(module: str) -> None:
    """A module imports neither the broker nor an installed package."""
    ours = {"broker.figures"} if module.startswith("figures") else {"broker.perf", "broker.figures"}
    others = imported((BROKER / module).read_text()) - ours - sys.stdlib_module_names
    assert others == ALSO.get(module, set())
