"""Builds of the wheel: where it can compile, where it cannot, and where it should not."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import broker
from broker import compiled
from broker.cli.parser import version_line
from tools import compiled_build

hatchling = pytest.importorskip("hatchling.builders.wheel", reason="the extra dev is not installed")

PROJECT = compiled_build.HERE


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders that something is compiled into; one module is made in each."""
    folders: list[Path] = []

    def build(_project: Path, folder: Path) -> list[Path]:
        folders.append(folder)
        (folder / "broker").mkdir()
        module = folder / "broker" / "made.so"
        module.write_bytes(b"made")
        return [module]

    monkeypatch.setattr(compiled_build, "build", build)
    monkeypatch.setenv("CC", "true")
    monkeypatch.delenv(compiled_build.SWITCH, raising=False)
    return folders


def wheel(folder: Path) -> zipfile.ZipFile:
    """Build a wheel of the project."""
    (path,) = hatchling.WheelBuilder(str(PROJECT)).build(directory=str(folder))
    return zipfile.ZipFile(path)


def test_a_compiled_wheel_is_for_this_python(tried: list[Path], tmp_path: Path) -> None:
    """The compiled modules lie beside their sources, and the wheel's name has the Python and the machine."""
    with wheel(tmp_path) as made:
        assert {"broker/made.so", "broker/compiled.py"} <= set(made.namelist())
        assert "broker/interpreted.txt" not in made.namelist()
        assert not Path(str(made.filename)).name.endswith("-none-any.whl")
    assert len(tried) == 1
    assert not tried[0].exists()


def test_a_compilation_that_fails_ends_the_build(
    tried: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No wheel is made, and the reason is one line."""

    def fail(*_: Path) -> list[Path]:
        raise compiled_build.CompileError("broker/amqp/wire.py:1: error: no such name")

    monkeypatch.setattr(compiled_build, "build", fail)
    with pytest.raises(SystemExit, match="1"):
        wheel(tmp_path)
    said = "".join(capsys.readouterr())
    assert (
        said
        == "cannot compile: broker/amqp/wire.py:1: error: no such name (SLOTMQ_COMPILE=0 builds from the sources)\n"
    )
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.parametrize("why", ["SLOTMQ_COMPILE=0", "there is no C compiler named none"])
def test_a_wheel_of_sources_says_why(
    why: str,
    tried: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a compiler, and by the switch, the wheel holds sources; the build, the version and the log say why."""
    if "=0" in why:
        monkeypatch.setenv("SLOTMQ_COMPILE", "0")
    else:
        monkeypatch.setenv("CC", "none")
    with wheel(tmp_path) as made:
        assert Path(str(made.filename)).name.endswith("-py3-none-any.whl")
        made.extract("broker/interpreted.txt", tmp_path)
    assert not tried
    assert f"building from the sources, which run slower: {why}\n" in "".join(capsys.readouterr())
    monkeypatch.setattr(broker, "__file__", str(tmp_path / "broker" / "__init__.py"))
    assert compiled.why_interpreted() == why
    assert version_line().endswith(f"; installed without a compilation: {why})")


@pytest.mark.parametrize(("compiler", "expected"), [("true", True), ("none", False)])
def test_only_a_compilation_needs_mypy(compiler: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that compiles nothing installs nothing for it."""
    monkeypatch.delenv(compiled_build.SWITCH, raising=False)
    monkeypatch.setenv("CC", compiler)
    needed = hatchling.WheelBuilder(str(PROJECT)).config.dependencies
    assert any(one.startswith("mypy<") for one in needed) == expected


def test_a_compiler_that_does_not_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A macOS without its developer tools has a program of that name, which only offers to install them."""
    program = tmp_path / "cc"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("CC", str(program))
    with pytest.raises(compiled_build.NoCompiler, match="does not run"):
        compiled_build.check_compiler()
