"""Compiles the hot modules with mypyc: `python tools/compiled_build.py FOLDER` writes the package there.

The sources of the project stay unchanged and also run interpreted. The compiled modules are those that messages pass
through, on their way in, out, to disk and back: whole packages, except for some modules, with reasons. Compiling needs
the extra `compile`, the package's own dependencies, a C compiler and Python's header files. Without the last two, a
wheel is built from the sources; any other failure ends the build.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PACKAGE: Final = "broker"
PLUGIN: Final = "pytest_slotmq.py"
PACKAGES: Final = ("amqp", "core", "delivery", "mqtt", "overlay", "routing", "slots", "store")
"""The packages of the broker that are compiled, with their subpackages, except `EXCEPTIONS`."""
EXCEPTIONS: Final = {
    "amqp/errors.py": "exceptions: mypyc gives the `error` of `except ... as error` one type in a whole function",
    "amqp/lenient_methods.py": "pamqp's classes have slots, and it reads the types of fields from class attributes",
    "core/definitions": "acts on an operator's document",
    "core/delayed.py": "acts on delayed messages, one by one",
    "core/mqtt/faults.py": "exceptions, as amqp/errors.py",
    "core/mqtt/wills.py": "as core/delayed.py",
    "core/postponed.py": "exceptions, as amqp/errors.py, and with subclasses that are interpreted",
    "core/moving": "acts on an operator's call",
    "core/policy": "acts on changes of policies",
    "core/publishing/producers.py": "a node of a cluster has an interpreted subclass",
    "core/publishing/reply_to.py": "a node of a cluster has an interpreted subclass",
    "core/topology/deferred_unbinding.py": "acts on deletions, a slice a turn; tests make it small",
    "core/queue/due_moments.py": "as core/delayed.py",
    "core/queue/holding.py": "as core/delayed.py",
    "core/queue/ports.py": "generic data classes",
    "delivery/checkpointer.py": "acts once a minute; tests make its slices small",
    "delivery/clock_watch.py": "acts once a second",
    "delivery/compactor.py": "acts once a minute; tests make its slices small",
    "delivery/engine_parts.py": "keeps functions and classes in class attributes",
    "delivery/queue_messages.py": "acts on an operator's call",
    "delivery/reader.py": "starts threads; tests replace it",
    "mqtt/errors.py": "exceptions, as amqp/errors.py",
    "overlay/simulation": "runs in tests and in Spark, never in a broker",
    "store/store.py": "a facade, whose calls tests count and delay",
    "store/stored_slots.py": "reads whole slots, mostly in threads; tests count and delay its calls",
    "store/damage.py": "exceptions, as amqp/errors.py",
    "store/files.py": "waits for the disk; tests replace it",
    "store/memory_files.py": "the files of tests",
}
MODULES: Final = (
    "cluster/batch.py",
    "cluster/chunk.py",
    "cluster/shared_queue.py",
    "cluster/shared_slot.py",
    "cluster/shared_store.py",
    "cluster/shared_level.py",
    "log_writer.py",
    "net/handshakes.py",
    "net/listener.py",
    "net/publisher_throttle.py",
    "net/receive_buffer.py",
    "net/transport.py",
    "overlay_node/overlay_link.py",
    "telemetry.py",
)
"""Modules on the path of messages and connections, in packages that otherwise act once per statement or request."""
AS_IN_PYTHON: Final = "Treating generator comprehension as list"
"""The only accepted warning of mypyc: it concerns speed, not behaviour."""
STAMP: Final = "sources.sha1"
SWITCH: Final = "SLOTMQ_COMPILE"
"""The environment variable that disables compiling when it is 0."""
NOT_SOURCES: Final = (".so", ".pyd", ".pyc")
HERE: Final = Path(__file__).resolve().parent.parent
"""The project."""
PROGRAMS: Final = (HERE / "tools" / "compiled_build.py", HERE / "tools" / "extension_build.py")


class CompileError(Exception):
    """Modules that could not be compiled; the text is the reason in one line."""


class NoCompiler(CompileError):
    """There is no C compiler, or Python's header files are missing."""


def modules(project: Path) -> list[str]:
    """Return the paths of the modules to compile, relative to a project, in a fixed order."""
    package = project / PACKAGE
    found = {package / name for name in MODULES}
    found.update(path for name in PACKAGES for path in (package / name).rglob("*.py"))
    left_out = [package / name for name in EXCEPTIONS]
    return sorted(
        path.relative_to(project).as_posix()
        for path in found
        if path.name != "__init__.py" and not any(path.is_relative_to(exception) for exception in left_out)
    )


def wanted() -> bool:
    """Return whether the environment permits compiling."""
    return os.environ.get(SWITCH, "1") != "0" and sys.implementation.name == "cpython"


def check_compiler() -> None:
    """Raise NoCompiler when there is no C compiler, or Python's header files are not installed."""
    if os.name != "posix":
        raise NoCompiler(f"{sys.platform} is not supported")
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise NoCompiler(f"there is no C compiler named {compiler}")
    if subprocess.call([compiler, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        raise NoCompiler(f"{compiler} does not run")  # macOS has one that only offers to install the real one
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise NoCompiler(f"there is no {header}")


def build(project: Path, folder: Path) -> list[Path]:
    """Copy the whole package into an empty folder, add the compiled modules and return their files.

    Raises: NoCompiler; CompileError.
    """
    check_compiler()
    others = shutil.ignore_patterns("__pycache__", ".*", *(f"*{suffix}" for suffix in NOT_SOURCES))
    shutil.copytree(project / PACKAGE, folder / PACKAGE, ignore=others)
    shutil.copy(project / PLUGIN, folder)  # its fixtures import the package beside it
    environment = {**os.environ, "MYPYPATH": "."}
    command = [sys.executable, str(PROGRAMS[1]), *modules(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        errors = [line for line in said if "error:" in line] or said[-1:]
        raise CompileError(errors[0] if errors else f"the compilation ended with {done.returncode}")
    warnings = [line for line in done.stdout.splitlines() if "warning:" in line and AS_IN_PYTHON not in line]
    if warnings:
        raise CompileError(warnings[0])
    return sorted(path for path in folder.rglob("*") if path.name.endswith(NOT_SOURCES[:2]))


def refresh(project: Path, folder: Path) -> bool:
    """Rebuild a folder if a source has changed since its build, and return whether it was rebuilt.

    A build that fails or is interrupted leaves the folder unchanged. Concurrent builds run one after the other.
    Raises: NoCompiler; CompileError; OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = folder.with_name(".new"), folder.with_name(".old")
    with locked(folder.with_name(".lock")):
        stamp = folder / STAMP
        if stamp.exists() and stamp.read_text() == sources_digest(project):
            return False
        for left in (new, old):  # by an interrupted build
            shutil.rmtree(left, ignore_errors=True)
        build(project, new)
        (new / STAMP).write_text(sources_digest(new))  # of the compiled sources: one may have changed since
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file, and hold it."""
    import fcntl  # not on Windows, where nothing is compiled in place

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sources_digest(folder: Path) -> str:
    """Return a digest of a folder's package, of the programs that compile it and of the interpreter.

    Cost: reads every file of the package, about 15 ms.
    """
    total = hashlib.sha1(sys.version.encode(), usedforsecurity=False)
    for path in [*map(str, PROGRAMS), *_files(str(folder / PACKAGE))]:
        with open(path, "rb", buffering=0) as file:  # half the time of Path.read_bytes
            content = file.read()
        name = path.removeprefix(str(folder)).removeprefix(str(HERE))
        total.update(f"{name} {len(content)} ".encode() + content)
    return total.hexdigest()


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(entry.path)
        elif not entry.name.endswith(NOT_SOURCES) and not entry.name.startswith("."):  # such as an editor's locks
            yield entry.path


def main(arguments: list[str]) -> int:
    """Compile into the given folder, and return an exit code: 3 without a compiler, 2 for any other error."""
    if len(arguments) != 1:
        print("usage: python tools/compiled_build.py FOLDER", file=sys.stderr)
        return 2
    try:
        rebuilt = refresh(HERE, Path(arguments[0]).absolute())
    except CompileError as error:
        print(f"cannot compile: {error}", file=sys.stderr)
        return 3 if isinstance(error, NoCompiler) else 2
    print(f"{len(modules(HERE))} compiled modules in {arguments[0]}{'' if rebuilt else ', unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
