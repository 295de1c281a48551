"""Compiled or interpreted: both have the same sources, and the tests know which one they run."""

import ast
import importlib
import os
from pathlib import Path

import pytest

import compiled_build
from broker.compiled import is_compiled, kind


@pytest.mark.parametrize("path", compiled_build.COMPILED)
def test_the_modules_are_what_the_run_says(path: str) -> None:
    """A run of the compiled tests imports compiled modules only, and any other run the sources only."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    expected = os.environ.get("SLOTMQ_TEST_COMPILED") == "1"
    assert (not str(module.__file__).endswith(".py")) == expected
    assert is_compiled() == expected
    assert kind() == ("compiled" if expected else "interpreted")


def test_no_compiler_is_one_line_and_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a C compiler nothing is built, and the caller continues with the sources."""
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert compiled_build.main([str(tmp_path / "made")]) == 3
    assert capsys.readouterr().err == "cannot compile: there is no C compiler named no-such-compiler\n"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("value", "expected"), [("0", False), ("1", True), (None, True)])
def test_the_switch(value: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOTMQ_COMPILE=0 turns compiling off; it is on by default."""
    monkeypatch.delenv("SLOTMQ_COMPILE", raising=False)
    if value is not None:
        monkeypatch.setenv("SLOTMQ_COMPILE", value)
    assert compiled_build.wanted() == expected


# ---- code that mypyc must not get ------------------------------------------------------------------------------------

HARMLESS = {"len", "min", "max"}


def repeated(source: str) -> list[int]:
    """Return the lines of slice bounds that may have side effects."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Slice):
            continue
        bounds = [bound for bound in (node.lower, node.upper, node.step) if bound is not None]
        for part in [part for bound in bounds for part in ast.walk(bound)]:
            named = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in HARMLESS
            if isinstance(part, ast.Call | ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom) and not named:
                found.append(part.lineno)
    return found


@pytest.mark.parametrize("path", compiled_build.COMPILED)
def test_a_slice_bound_does_nothing(path: str) -> None:
    """mypyc evaluates a slice bound twice, so no slice bound may have a side effect."""
    source = (Path(compiled_build.__file__).parent / path).read_text(encoding="utf-8")
    assert not repeated(source)


@pytest.mark.parametrize("bound", ["take()", "self.take() :", ": len(take())", "(at := at + 1) :", "::step()"])
def test_a_slice_bound_that_does_something_is_found(bound: str) -> None:
    """Calls and assignments anywhere in a bound are found; len, min and max are allowed."""
    text = bound if ":" in bound.replace(":=", "") else f"{bound}:"
    assert repeated(f"messages[{text}]") == [1]
    assert not repeated("messages[start + 1 : min(len(messages), limit)]")


def passed_on(source: str) -> list[int]:
    """Return the lines of calls of a base class's method that unpack arguments."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("super().")
        and (any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords))
    ]


@pytest.mark.parametrize("path", compiled_build.COMPILED)
def test_a_base_class_gets_its_arguments_one_by_one(path: str) -> None:
    """mypyc passes unpacked arguments of super() on as one argument, so each is passed by name."""
    assert not passed_on((Path(compiled_build.__file__).parent / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("call", ["super().__init__(name, **more)", "super().take(*all)"])
def test_an_unpacked_argument_of_a_base_class_is_found(call: str) -> None:
    """A star anywhere is found; the same call of another object is allowed."""
    assert passed_on(call) == [1]
    assert not passed_on(call.replace("super()", "other"))


def of_abc(source: str) -> list[int]:
    """Return the lines of classes whose metaclass is ABCMeta."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and {"ABC", "ABCMeta"} & {ast.unparse(one).rpartition(".")[2] for one in [*node.bases, *_values(node)]}
    ]


def _values(node: ast.ClassDef) -> list[ast.expr]:
    return [keyword.value for keyword in node.keywords]


@pytest.mark.parametrize("path", compiled_build.COMPILED)
def test_no_class_is_an_abc(path: str) -> None:
    """All compiled classes of ABCMeta share one cache of isinstance: what was a Queue would be an Exchange, too.

    mypy checks abstract methods without it.
    """
    assert not of_abc((Path(compiled_build.__file__).parent / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("bases", ["ABC", "Generic[T], abc.ABC", "metaclass=ABCMeta"])
def test_an_abc_is_found(bases: str) -> None:
    """An ABC is found however it is written; a class of another base is allowed."""
    assert of_abc(f"class A({bases}): ...") == [1]
    assert not of_abc("class A(Generic[T]): ...")
