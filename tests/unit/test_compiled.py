"""Compiled or interpreted: the same sources, and the tests know which they test."""

import importlib
import os
from pathlib import Path

import pytest

import compiled_build
from broker.compiled import is_compiled, kind


@pytest.mark.parametrize("path", compiled_build.COMPILED)
def test_the_modules_are_what_the_run_says(path: str) -> None:
    """A run of the compiled tests tests compiled modules, all of them, and any other run the sources."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    expected = os.environ.get("SLOTMQ_TEST_COMPILED") == "1"
    assert (not str(module.__file__).endswith(".py")) == expected
    assert is_compiled() == expected
    assert kind() == ("compiled" if expected else "interpreted")


def test_no_compiler_is_one_line_and_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a C compiler nothing is compiled and nothing made; whoever called goes on interpreted."""
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert compiled_build.main([str(tmp_path / "made")]) == 3
    assert capsys.readouterr().err == "cannot compile: there is no C compiler named no-such-compiler\n"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("value", "expected"), [("0", False), ("1", True), (None, True)])
def test_the_switch(value: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOTMQ_COMPILE=0 leaves compiling out; it is on otherwise."""
    monkeypatch.delenv("SLOTMQ_COMPILE", raising=False)
    if value is not None:
        monkeypatch.setenv("SLOTMQ_COMPILE", value)
    assert compiled_build.wanted() == expected
