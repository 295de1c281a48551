"""Writes to fields of other objects in the broker's sources."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

BESIDE: Final = ("pipeline", "perf", "cli", "testing")
"""The packages outside the daemon, where an object may write fields of another."""
HOT: Final = "# hot: set directly"
"""The comment of a line that writes a field of another object because a call would cost too much there."""


def foreign_writes(root: Path) -> list[str]:
    """Return each assignment to a field of an object that is neither `self` nor `cls`, as `file:line target`.

    An object that a method of its own class has just created belongs to the class: its name was bound to a call of the
    class, of `cls` or of `__new__`. Three kinds of assignment are not reported: on lines that `HOT` marks, through a
    property setter, and to an object just created by a library or to its attributes, such as `ssl.SSLContext()` and
    `ctypes.PyDLL(None).malloc`.
    """
    names = [path.relative_to(root) for path in sorted((root / "broker").rglob("*.py"))]
    texts = {name: (root / name).read_text() for name in names if name.parts[1] not in BESIDE}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    properties = _properties(trees.values())
    found: list[str] = []
    for name, tree in trees.items():
        lines = texts[name].splitlines()
        found += [
            f"{name}:{target.lineno} {ast.unparse(target)}"
            for target in _foreign(tree)
            if target.attr not in properties and not lines[target.lineno - 1].endswith(HOT)
        ]
    return found


def _properties(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names that have a setter in a class of the daemon and are a plain field in no class."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    setters = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == f"{node.name}.setter" for decorator in node.decorator_list)
    }
    fields = {
        target.attr
        for node in nodes
        for target in _targets(node)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }
    declared = {
        statement.target.id
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    return setters - fields - declared


def _foreign(tree: ast.Module) -> Iterator[ast.Attribute]:
    libraries = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if not alias.asname and alias.name.split(".")[0] != "broker"
    }
    for function, owner in _functions(tree, None):
        own, lent = {"self", "cls"}, set()
        for name, called in _made(function):
            if called in {"cls", owner} or called.endswith("__new__"):
                own.add(name)
            elif called.rpartition(".")[0] in libraries:
                lent.add(name)
        for node in _own_nodes(function):
            for target in _targets(node):
                if isinstance(target, ast.Attribute):
                    holder = ast.unparse(target.value)
                    if holder not in own and holder.split(".")[0] not in lent:
                        yield target


def _functions(node: ast.AST, owner: str | None) -> Iterator[tuple[ast.AST, str | None]]:
    if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node, owner
    for child in ast.iter_child_nodes(node):
        yield from _functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions and classes inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _made(function: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that is bound to the result of a call, and the called expression."""
    for node in _own_nodes(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            yield from ((ast.unparse(target), called) for target in node.targets)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
        targets = [node.target]
    while targets:
        target = targets.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            targets[:0] = target.elts
        else:
            yield target
