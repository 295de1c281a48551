"""Compiled or interpreted: both have the same sources, and the tests know which one they run."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.compiled import GROUPS, build_kind, is_compiled
from tests.broker_process import PACKAGE
from tools import compiled_build


@pytest.mark.parametrize("path", compiled_build.modules(compiled_build.HERE))
def test_the_modules_are_what_the_run_says(path: str) -> None:
    """A run of the compiled tests imports compiled modules only, and any other run the sources only."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    expected = os.environ.get("TEST_COMPILED") == "1"
    assert (not str(module.__file__).endswith(".py")) == expected
    assert is_compiled() == expected
    assert build_kind() == ("compiled" if expected else "interpreted")


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


def test_each_exception_is_there() -> None:
    """A module or package that is gone leaves no exception behind."""
    package = compiled_build.HERE / compiled_build.PACKAGE
    assert [name for name in compiled_build.EXCEPTIONS if not (package / name).exists()] == []


def test_what_is_compiled_is_what_version_looks_at() -> None:
    """`slotmq --version` looks at one compiled module of each package that has some."""
    paths = compiled_build.modules(compiled_build.HERE)
    folders = {path.split("/")[1] for path in paths if path.count("/") > 1}
    assert folders == set(GROUPS)
    assert all(f"broker/{package}/{module}.py" in paths for package, module in GROUPS.items())


@pytest.mark.slow
def test_a_warning_of_mypyc_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mypyc only warns of class attributes that it leaves out; then the build would not do what the sources say."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "part.py").write_text("class Part:\n    kind = print\n")
    shutil.copy(compiled_build.HERE / compiled_build.PLUGIN, tmp_path)
    monkeypatch.setattr(compiled_build, "modules", lambda _project: ["broker/part.py"])
    with pytest.raises(compiled_build.CompileError, match=r"part.py:2: warning: Unsupported default attribute value"):
        compiled_build.build(tmp_path, tmp_path / "made")


@pytest.mark.skipif(os.environ.get("TEST_COMPILED") != "1", reason="the guard stands beside the compiled modules")
def test_sources_cannot_be_tested_by_mistake(tmp_path: Path) -> None:
    """In a run of the compiled tests a process that finds the sources first ends with an ImportError."""
    paths = os.pathsep.join([str(PACKAGE), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", "import broker.amqp.framing"]
    ends = [
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
        for path in (paths, os.pathsep.join([str(tmp_path), paths]))
    ]
    assert [end.returncode for end in ends] == [0, 0]
    shutil.copytree(compiled_build.HERE / "broker", tmp_path / "broker", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), paths])}
    end = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert f"broker.amqp.framing is {tmp_path}" in end.stderr
