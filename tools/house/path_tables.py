"""A table of each traced path: its files and functions, with the first line of each file's docstring."""

from __future__ import annotations

import ast
import re
from itertools import groupby

from tools.house import paths
from tools.house.tracer import Step, files, functions


def path_table(name: str) -> str:
    """Return the table of one path: each file once, with its functions in the order of their first calls.

    The path of a new key lists only the functions that the publish path does not call.
    """
    steps = functions(paths.walk(name))
    if name == "publish-new-key":
        known = {(step.file, step.function) for step in functions(paths.walk("publish"))}
        steps = [step for step in steps if (step.file, step.function) not in known]
    rows = ["| | file | functions, in the order of their first calls | |", "|--:|---|---|---|"]
    for number, file in enumerate(files(steps), 1):
        called = _names([step for step in steps if step.file == file])
        rows.append(f"| {number} | `{file.removeprefix('broker/')}` | {called} | {_summary_of(file)} |")
    return "\n".join(rows)


def _names(steps: list[Step]) -> str:
    """Return the functions of one file; consecutive methods name their class once."""
    names = [step.function.replace("<locals>.", "") for step in steps]
    return ", ".join(_methods(list(group)) for _, group in groupby(names, lambda name: name.rpartition(".")[0]))


def _methods(names: list[str]) -> str:
    owner, dot, _ = names[0].rpartition(".")
    others = [f"{dot}{name[len(owner) + len(dot) :]}" for name in names[1:]]
    return ", ".join([f"`{name}`" for name in [names[0], *others]])


def _summary_of(file: str) -> str:
    """Return the first sentence of a module's docstring, without its full stop, and escaped for a table cell."""
    docstring = ast.get_docstring(ast.parse((paths.ROOT / file).read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`])\. |\.$", paragraph)[0].replace("|", r"\|")
