"""Refuse code that behaves differently, or fails, when compiled: `python -m tools.native`, part of `make lint`.

mypyc makes native classes: they have no `__dict__`, no weak references and no attributes that can be replaced, and
their functions call each other without an interpreter's checks. Constructs that mypyc itself refuses need no rule.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tools import compiled_build

HARMLESS: Final = {"len", "min", "max"}
"""Functions that may be called in the bounds of a slice."""
LACKING: Final = {
    "abc.ABC": "compiled classes of ABCMeta share one cache of isinstance; mypy checks abstract methods without it",
    "abc.ABCMeta": "as abc.ABC",
    "copy": "a native object has no `__dict__` to copy",
    "inspect": "a compiled function has no frame and no signature, and its coroutine is none for `inspect`",
    "pickle": "a native object has no `__dict__` to pickle",
    "weakref": "a native object has no weak references",
    "functools.cached_property": "it writes into `__dict__`, which a native object lacks",
    "functools.partialmethod": "it is a descriptor, which a native class does not call",
    "functools.singledispatchmethod": "it is a descriptor, which a native class does not call",
}
"""Modules, and names of modules, that compiled code does not import."""
WAITS: Final = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
FRAMES: Final = {"vars", "locals", "_getframe", "currentframe"}
UNBOUNDED: Final = "compiled code recurses until its stack overflows; end the line with `# depth: what bounds it`"
DEPTH: Final = re.compile(r"# depth: \S")
WEAK: Final = re.compile(r"^\s*(?:from weakref import|import weakref)\b(?!.*# of )", re.MULTILINE)

Finding = tuple[int, str]


def slice_bounds(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
    """Yield slice bounds that may have a side effect."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Slice):
            continue
        bounds = [bound for bound in (node.lower, node.upper, node.step) if bound is not None]
        for part in [part for bound in bounds for part in ast.walk(bound)]:
            named = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in HARMLESS
            if isinstance(part, ast.Call | ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom) and not named:
                yield part.lineno, "mypyc evaluates a slice bound twice: compute it before"


def unpacked_arguments(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
    """Yield calls of a base class's method that unpack arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("super()."):
            stars = [isinstance(one, ast.Starred) for one in node.args] + [one.arg is None for one in node.keywords]
            if any(stars):
                yield node.lineno, "mypyc passes unpacked arguments of super() on as one: pass each by name"


def lacking_imports(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
    """Yield imports of modules that need features which native objects lack."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [name for alias in node.names for name in (node.module or "", f"{node.module}.{alias.name}")]
        else:
            continue
        for name in names:
            if name in LACKING:
                yield node.lineno, f"{name}: {LACKING[name]}"


def missing_attributes(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
    """Yield uses of `__dict__`, `__weakref__` and frames, and assignments to `__class__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__weakref__"):
            yield node.lineno, f"a native object has no `{node.attr}`"
        elif isinstance(node, ast.Attribute) and node.attr == "__class__" and not isinstance(node.ctx, ast.Load):
            yield node.lineno, "a native object keeps its class"
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in FRAMES:
                yield node.lineno, f"{called}(): a native object has no `__dict__`, a compiled function no frame"


def recursion(tree: ast.AST, source: Sequence[str]) -> Iterator[Finding]:
    """Yield recursive calls on lines without a `# depth:` comment."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _calls(node.func, function) and not DEPTH.search(source[node.lineno - 1]):
                yield node.lineno, f"{function.name}() calls itself: {UNBOUNDED}"


def truth_by_length(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
    """Yield native classes with `__len__` but without `__bool__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and _native(node):
            methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            if "__len__" in methods and "__bool__" not in methods:
                yield node.lineno, f"mypyc treats an empty `{node.name} | None` as true: define `__bool__`"


def raise_after_wait(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
    """Yield bare `raise` statements that follow an await or a yield in their `except` clause."""
    for clause in [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]:
        parts = [part for statement in clause.body for part in ast.walk(statement)]
        waits = [one.lineno for one in parts if isinstance(one, WAITS)]
        for part in parts:
            if isinstance(part, ast.Raise) and part.exc is None and min(waits, default=part.lineno) < part.lineno:
                yield part.lineno, "mypyc then raises what another coroutine handles: name the error"


def _calls(called: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the called expression is this function, by its name or as a method of the same object."""
    arguments = function.args.posonlyargs + function.args.args
    if isinstance(called, ast.Name):
        return called.id == function.name and not (arguments and arguments[0].arg in ("self", "cls"))
    own = isinstance(called, ast.Attribute) and called.attr == function.name and isinstance(called.value, ast.Name)
    return own and bool(arguments) and ast.unparse(called.value) == arguments[0].arg  # type: ignore[attr-defined]


def replaced_attributes(classes: set[str]) -> Callable[[ast.AST, Sequence[str]], Iterator[Finding]]:
    """Return the rule that yields assignments to attributes of compiled classes."""

    def rule(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                name = ast.unparse(node.value)
                if name in classes:
                    yield node.lineno, f"attributes of the native class {name} cannot be assigned"

    return rule


def exception_names(classes: set[str]) -> Callable[[ast.AST, Sequence[str]], Iterator[Finding]]:
    """Return the rule that yields names bound by several `except` clauses of a function, one to a compiled class."""

    def rule(tree: ast.AST, _source: Sequence[str]) -> Iterator[Finding]:
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            bound: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
                    kinds = bound.setdefault(node.name, set())
                    kinds.add(ast.unparse(node.type))
                    if len(kinds) > 1 and kinds & classes:
                        yield node.lineno, f"mypyc gives `{node.name}` one type in the whole function: use another name"

    return rule


RULES: Final = (
    slice_bounds, unpacked_arguments, lacking_imports, missing_attributes, recursion, truth_by_length, raise_after_wait
)  # fmt: skip


def classes_of(sources: Iterable[str]) -> set[str]:
    """Return the names of the native classes that modules define."""
    trees = [ast.parse(source) for source in sources]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _native(node)}


def _native(node: ast.ClassDef) -> bool:
    """Return whether the class becomes a native class that no interpreted class may inherit from."""
    names = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return not names & {"Protocol", "NamedTuple", "TypedDict", "Enum", "IntEnum"} and not any(
        "allow_interpreted_subclasses" in ast.unparse(one) for one in node.decorator_list
    )


def check(source: str, classes: set[str]) -> list[Finding]:
    """Return the findings in a module that is compiled with these classes, in the order of its lines."""
    tree, lines = ast.parse(source), source.splitlines()
    rules = (*RULES, replaced_attributes(classes), exception_names(classes))
    return sorted({finding for rule in rules for finding in rule(tree, lines)})


def check_caller(source: str, classes: set[str]) -> list[Finding]:
    """Return the findings in an interpreted module that uses these compiled classes."""
    tree = ast.parse(source)
    found = list(replaced_attributes(classes)(tree, ()))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(one).partition("[")[0] for one in node.bases} & classes
            found += [
                (node.lineno, f"an interpreted class cannot inherit from the native class {one}") for one in bases
            ]
    weak = [source.count("\n", 0, match.start()) + 1 for match in WEAK.finditer(source)]
    reason = f"weakref: {LACKING['weakref']}; end the import with `# of ...` if it is of other objects"
    return sorted([*found, *((line, reason) for line in weak)])


def main() -> int:
    """Print every finding in the package, and return the exit code."""
    project = compiled_build.HERE
    compiled = [project / path for path in compiled_build.modules(project)]
    classes = classes_of(path.read_text(encoding="utf-8") for path in compiled)
    failed = 0
    for path in sorted((project / compiled_build.PACKAGE).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for line, reason in (check if path in compiled else check_caller)(source, classes):
            print(f"{path.relative_to(project)}:{line}: {reason}")
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
