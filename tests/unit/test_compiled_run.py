"""`make run`: compiled when a build for exactly these sources exists, else interpreted, and compiled the next time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import DEADLINE_S
from tools import compiled_build, compiled_run

MODULE = "core.py"

OURS = {"SLOTMQ_COMPILE", "PYTHONPATH", "PYTHONSAFEPATH"}


class Started(BaseException):
    """The program that the launcher became."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.package = Path(environment["PYTHONPATH"].split(os.pathsep)[0])
        self.reason = environment.get(compiled_run.REASON)


class Checkout:
    """A folder with a package, whose builds are copies; the starts of background processes are counted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.module = folder / "broker" / MODULE
        self.module.parent.mkdir(parents=True)
        self.module.write_text("A = 1\n")
        self.compiled = 0
        self.background = 0
        monkeypatch.setattr(compiled_run, "HERE", folder)
        monkeypatch.setattr(compiled_run, "BUILDS", folder / "build" / "run")
        monkeypatch.setattr(compiled_run, "FAILURE", folder / "build" / "run" / "failure")
        monkeypatch.setattr(compiled_build, "build", self.build)
        monkeypatch.setattr(subprocess, "run", self.run)
        monkeypatch.setattr(os, "execve", self.execve)

    def build(self, project: Path, folder: Path) -> list[Path]:
        """Copy the package."""
        self.compiled += 1
        shutil.copytree(project / "broker", folder / "broker")
        return []

    def run(self, command: list[str], **_: Any) -> None:
        """Count what runs in the background."""
        assert command[-1] == "compile"
        self.background += 1

    def execve(self, _program: str, _arguments: list[str], environment: dict[str, str]) -> None:
        """Raise what the launcher would become."""
        raise Started(environment)

    def start(self) -> Started:
        """Start the broker."""
        with pytest.raises(Started) as started:
            compiled_run.start(["serve"])
        return started.value

    def used_build(self) -> Path | None:
        """Start the broker, and return its build unless it is interpreted."""
        package = self.start().package
        assert package == self.folder or (package / "broker" / MODULE).read_text() == self.module.read_text()
        return None if package == self.folder else package


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """Return a checkout without a build."""
    monkeypatch.delenv("SLOTMQ_COMPILE", raising=False)
    return Checkout(tmp_path / "checkout", monkeypatch)


def test_a_start_that_can_keep_no_build_says_so(checkout: Checkout) -> None:
    """If no build can be written, none is made in the background, and the next start is not announced as compiled."""
    (checkout.folder / "build").symlink_to("nowhere")
    assert checkout.used_build() is None
    assert (
        checkout.start().reason
        == f"no build can be written to {compiled_run.BUILDS}; its owner makes one with: make compile"
    )
    assert checkout.background == 0


def test_the_first_start_compiles_and_the_next_is_compiled(checkout: Checkout) -> None:
    """Without a build the broker starts interpreted and says why; with one it starts from it and says nothing."""
    first = checkout.start()
    assert (first.package, first.reason) == (checkout.folder, "compiling; the next start is compiled")
    assert checkout.background == 1
    assert compiled_run.compile_now() == 0
    assert compiled_run.compile_now() == 0
    assert checkout.compiled == 1
    second = checkout.start()
    assert second.package.parent == checkout.folder / "build" / "run"
    assert second.reason is None
    assert checkout.background == 1


def test_an_edited_source_is_never_shadowed(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits of any file, new and deleted files and another Python need another build; reverting finds the old one."""
    compiled_run.compile_now()
    build = checkout.used_build()
    assert build is not None
    page, package = build.parents[2] / "broker" / "page.html", build.parents[2] / "broker" / "new"

    def add_package() -> None:
        package.mkdir()
        (package / MODULE).touch()

    for change, revert in (
        (partial(checkout.module.write_text, "A = 2\n"), partial(checkout.module.write_text, "A = 1\n")),
        (page.touch, page.unlink),
        (add_package, partial(shutil.rmtree, package)),
        (partial(checkout.module.rename, page), partial(page.rename, checkout.module)),
    ):
        change()
        assert checkout.start().package == checkout.folder
        revert()
        assert checkout.used_build() == build
    monkeypatch.setattr(sys, "version", "3.99.0")
    assert checkout.used_build() is None


def test_branches_are_switched(checkout: Checkout) -> None:
    """Each of two branches keeps its build."""
    builds = []
    for text in ("A = 1\n", "A = 2\n"):
        checkout.module.write_text(text)
        compiled_run.compile_now()
        builds.append(checkout.used_build())
    checkout.module.write_text("A = 1\n")
    assert checkout.used_build() == builds[0] != builds[1]
    assert checkout.compiled == 2


def test_a_source_that_changes_while_it_is_copied(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build counts for the sources that it contains, not for those at its begin."""

    def build(project: Path, folder: Path) -> list[Path]:
        checkout.module.write_text("A = 2\n")
        made = checkout.build(project, folder)
        checkout.module.write_text("A = 1\n")
        return made

    monkeypatch.setattr(compiled_build, "build", build)
    compiled_run.compile_now()
    assert checkout.used_build() is None


def copy_programs(project: Path) -> None:
    """Copy the programs that compile and start a broker into another project."""
    tools = project / "tools"
    tools.mkdir()
    for program in (*compiled_build.PROGRAMS, Path(compiled_run.__file__), compiled_build.HERE / "tools/__init__.py"):
        shutil.copy(program, tools)


def test_what_runs_is_a_copy(tmp_path: Path) -> None:
    """A source that is edited after the start of a compiled broker does not reach it."""
    package = tmp_path / "broker"
    package.mkdir()
    copy_programs(tmp_path)
    (package / "__init__.py").touch()
    late = package / "late.py"
    late.write_text("VALUE = 'of the build'\n")
    edit = f"open({str(late)!r}, 'w').write('VALUE = 1')"
    (package / "__main__.py").write_text(f"{edit}\nfrom broker.late import VALUE\nprint(VALUE)\n")
    digest = compiled_build.sources_digest(tmp_path)
    build = tmp_path / "build" / "run" / digest
    shutil.copytree(package, build / "broker")
    (build / compiled_build.STAMP).write_text(digest)
    command = [sys.executable, "tools/compiled_run.py", "serve"]
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("of the build\n", "")
    assert late.read_text() == "VALUE = 1"


def test_left_out_by_the_switch(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOTMQ_COMPILE=0 starts the sources and compiles nothing, also where a build exists."""
    compiled_run.compile_now()
    monkeypatch.setenv("SLOTMQ_COMPILE", "0")
    started = checkout.start()
    assert (started.package, started.reason, checkout.background) == (checkout.folder, None, 0)


def test_no_compiler_is_told_with_a_remedy(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C compiler nothing runs in the background, and the reason names a command that installs one."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert checkout.start().reason == (
        "there is no C compiler named no-such-compiler; install one, for example with: apt-get install gcc python3-dev"
    )
    assert checkout.background == 0


def test_a_failed_build_leaves_nothing_and_is_told(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is the next start's reason, until a build succeeds; what an interrupted build left is removed."""

    def fail(project: Path, folder: Path) -> list[Path]:
        checkout.build(project, folder)
        raise compiled_build.CompileError("broker/core.py:1: error: no")

    with monkeypatch.context() as context:
        context.setattr(compiled_build, "build", fail)
        assert compiled_run.compile_now() == 2
    started = checkout.start()
    assert started.package == checkout.folder
    assert started.reason is not None
    assert started.reason.endswith("(the last attempt failed: broker/core.py:1: error: no)")
    assert compiled_run.compile_now() == 0
    build = checkout.used_build()
    assert build is not None
    assert {path.name for path in build.parent.iterdir()} == {build.name, ".lock"}


def test_two_builds_at_once_compile_once(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, and finds its build."""
    second = threading.Thread(target=compiled_run.compile_now)
    waits = threading.Event()
    lock = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        if threading.current_thread() is second:
            waits.set()
        lock(file, operation)

    def build(project: Path, folder: Path) -> list[Path]:
        if not checkout.compiled:
            checkout.compiled += 1
            second.start()
            waits.wait(DEADLINE_S)
            checkout.compiled -= 1
        return checkout.build(project, folder)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(compiled_build, "build", build)
    assert compiled_run.compile_now() == 0
    second.join()
    assert checkout.compiled == 1
    assert checkout.used_build() is not None


def test_old_builds_are_removed_unless_a_broker_runs_from_them(checkout: Checkout) -> None:
    """The three that were used last stay, and each that a process holds."""
    builds = []
    for number in range(5):
        checkout.module.write_text(f"A = {number}\n")
        compiled_run.compile_now()
        builds.append(compiled_run.BUILDS / compiled_build.sources_digest(checkout.folder))
        for age, build in enumerate(reversed(builds)):
            if build.exists():
                os.utime(build / compiled_build.STAMP, (100 - age, 100 - age))
        if number == 0:
            assert compiled_run.claim(builds[0])  # as a broker does; the lock ends with the process
    assert [build.exists() for build in builds] == [True, False, True, True, True]


def test_a_folder_that_cannot_be_written(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may not write to the checkout, as in an image, still starts from another user's build."""
    compiled_run.compile_now()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    assert checkout.used_build() is not None


@pytest.mark.torture
def test_the_package_is_compiled(tmp_path: Path) -> None:
    """The project's own package compiles, and the launcher then starts it compiled."""
    others = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(compiled_build.HERE / "broker", tmp_path / "broker", ignore=others)
    copy_programs(tmp_path)
    shutil.copy(compiled_build.HERE / compiled_build.PLUGIN, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in OURS}

    def run(argument: str) -> str:
        command = [sys.executable, "tools/compiled_run.py", argument]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    assert run("compile").startswith("compiled: ")
    assert "(compiled: amqp, " in run("--version")
    assert "interpreted" not in run("--version")
