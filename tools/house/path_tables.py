"""A table of each traced path: its files and functions, with the first line of their docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from tools.house import paths
from tools.house.tracer import Step, functions

ROWS_MAX: Final = 45
"""The maximum of rows: a longer table has a row for each file, and one still longer a row for each folder."""


def path_table(name: str) -> str:
    """Return the table of one path: each function once, in the order of the first calls.

    The path of a new key lists only the functions that the publish path does not call.
    """
    steps = functions(paths.walk(name))
    if name == "publish-new-key":
        known = {(step.file, step.function) for step in functions(paths.walk("publish"))}
        steps = [step for step in steps if (step.file, step.function) not in known]
    if len(steps) <= ROWS_MAX:
        rows = [f"| `{_short(step.file)}` | `{_named(step)}` | {_told(step)} |" for step in steps]
        return _table("file", "function", rows)
    if len(files := _by(steps, lambda step: step.file)) <= ROWS_MAX:
        rows = [f"| `{_short(file)}` | {_names(calls)} | {_told_of(file)} |" for file, calls in files.items()]
        return _table("file", "functions, in the order of their first calls", rows)
    folders = _by(steps, lambda step: str(Path(step.file).parent))
    rows = [f"| `{_short(folder)}/` | {_counted(calls)} | {_told_of(folder)} |" for folder, calls in folders.items()]
    return _table("folder", "files, each with the number of its functions", rows)


def _table(place: str, names: str, rows: list[str]) -> str:
    head = [f"| | {place} | {names} | |", "|--:|---|---|---|"]
    return "\n".join([*head, *(f"| {number} {row}" for number, row in enumerate(rows, 1))])


def _by(steps: list[Step], place: Callable[[Step], str]) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in steps:
        found.setdefault(place(step), []).append(step)
    return found


def _short(file: str) -> str:
    return file.removeprefix("broker/")


def _named(step: Step) -> str:
    return step.function.replace("<locals>.", "")


def _names(steps: list[Step]) -> str:
    """Return the functions of one file; consecutive methods name their class once."""
    return ", ".join(_methods(list(group)) for _, group in groupby(steps, lambda step: _named(step).rpartition(".")[0]))


def _methods(steps: list[Step]) -> str:
    first, *others = (_named(step) for step in steps)
    owner, dot, _ = first.rpartition(".")
    return ", ".join(f"`{name}`" for name in [first, *(f"{dot}{name[len(owner) + len(dot) :]}" for name in others)])


def _counted(steps: list[Step]) -> str:
    return ", ".join(f"{Path(file).stem} {len(calls)}" for file, calls in _by(steps, lambda step: step.file).items())


def _told(step: Step) -> str:
    """Return the first line of a function's docstring, for a constructor its class's; empty if there is none."""
    wanted = _named(step).removesuffix(".__init__")
    for name, node in _nodes(ast.parse((paths.ROOT / step.file).read_text()), ""):
        if name == wanted:
            return _first_line(ast.get_docstring(node))
    return ""


def _nodes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            yield name, child
            yield from _nodes(child, f"{name}.")
        else:
            yield from _nodes(child, prefix)


def _told_of(place: str) -> str:
    """Return the first line of the docstring of a module or a package."""
    path = paths.ROOT / place
    source = path if path.is_file() else path / "__init__.py"
    return _first_line(ast.get_docstring(ast.parse(source.read_text())))


def _first_line(docstring: str | None) -> str:
    """Return the first sentence, without its full stop and without characters that break a table cell."""
    paragraph = " ".join((docstring or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`])\. |\.$", paragraph)[0].replace("|", r"\|")
