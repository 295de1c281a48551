"""Import cycles: modules that need each other, including type-only imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

Graph: TypeAlias = Mapping[str, set[str]]


def packages(root: Path) -> list[str]:
    """Return the packages of the broker by their names."""
    return sorted(f"broker.{path.parent.name}" for path in (root / "broker").glob("*/__init__.py"))


def import_graph(root: Path, package: str) -> Graph:
    """Return what each module of a package imports from the package, anywhere in the module."""
    paths = {_module(path.relative_to(root)): path for path in sorted((root / package.replace(".", "/")).rglob("*.py"))}
    return {name: set(_imported(name, path, paths)) - {name} for name, path in paths.items()}


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (module for module in inside if module in modules)
            if node.module and node.module in modules and not all(module in modules for module in inside):
                yield node.module


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module, the largest first. Cost: O(n) imports.

    Source: R. Tarjan, Depth-first search and linear graph algorithms, 1972.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in order:
            visit(module)
    return sorted(found, key=lambda circle: (-len(circle), circle))
