"""Starts the broker of a checkout, compiled if its sources have a build: `python tools/compiled_run.py serve ...`.

A build is a copy of the package with compiled modules, in a folder named by the digest of the sources, so an edited
source is never shadowed. Without a build the broker starts interpreted, and a process of low priority compiles for the
next start. `python tools/compiled_run.py compile` compiles at once.
"""

from __future__ import annotations

import compileall
import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.compiled_build import (
    HERE,
    PACKAGE,
    STAMP,
    CompileError,
    NoCompiler,
    check_compiler,
    refresh,
    sources_digest,
    wanted,
)

BUILDS: Final = HERE / "build" / "run"
FAILURE: Final = BUILDS / "failure"
KEPT_BUILDS: Final = 3
REASON: Final = "SLOTMQ_INTERPRETED"
"""The environment variable with the text that the broker logs at its start: why it is interpreted."""


def start(arguments: list[str]) -> NoReturn:
    """Replace this process by the broker with these arguments."""
    environment = {name: value for name, value in os.environ.items() if name != REASON}
    package = HERE
    if wanted():
        build = BUILDS / sources_digest(HERE)
        if claim(build):
            package = build
        else:
            environment[REASON] = compile_later()
    paths = [str(package), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "broker", *arguments], environment)


def claim(build: Path) -> bool:
    """Return whether a build can be used; if so, protect it from removal while this process runs."""
    try:
        stamp = os.open(build / STAMP, os.O_RDONLY)
    except FileNotFoundError:
        return False
    fcntl.flock(stamp, fcntl.LOCK_SH)
    os.set_inheritable(stamp, True)  # the broker keeps the lock
    if os.read(stamp, 100).decode() != build.name or not build.exists():  # a source changed while it was copied
        return False
    with suppress(OSError):  # the folder belongs to another user, or is read-only
        os.utime(stamp)
    return True


def compile_later() -> str:
    """Compile in another process of low priority, and return why this start is interpreted."""
    try:
        check_compiler()
    except NoCompiler as error:
        return f"{error}; install one, for example with: apt-get install gcc python3-dev"
    with suppress(OSError):  # a file system may be read-only
        BUILDS.mkdir(parents=True, exist_ok=True)
    if not os.access(BUILDS, os.W_OK):
        return f"no build can be written to {BUILDS}; its owner makes one with: make compile"
    failure = FAILURE.read_text() if FAILURE.exists() else ""
    # the shell ends at once, so that the broker has no child process
    command = ["sh", "-c", 'nice -n 19 "$@" &', "sh", sys.executable, __file__, "compile"]
    nothing = subprocess.DEVNULL
    subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, check=False)
    return "compiling; the next start is compiled" + (f" (the last attempt failed: {failure})" if failure else "")


def compile_now() -> int:
    """Compile the sources unless a build for them exists, remove unused builds, and return the exit code."""
    build = BUILDS / sources_digest(HERE)
    try:
        if refresh(HERE, build):
            compileall.compile_dir(build / PACKAGE, quiet=2)  # makes the first compiled start fast, too
        FAILURE.unlink(missing_ok=True)
        remove_unused()
    except (CompileError, OSError) as error:
        print(f"cannot compile: {error}", file=sys.stderr)
        with suppress(OSError):  # the folder cannot be written
            FAILURE.write_text(str(error))
        return 2
    print(f"compiled: {build}")
    return 0


def remove_unused() -> None:
    """Remove all builds but the last ones used, and those in use."""
    stamps = sorted(BUILDS.glob(f"*/{STAMP}"), key=lambda stamp: stamp.stat().st_mtime)
    for stamp in stamps[:-KEPT_BUILDS]:
        with stamp.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(stamp.parent)


if __name__ == "__main__":
    sys.exit(compile_now() if sys.argv[1:] == ["compile"] else start(sys.argv[1:]))
