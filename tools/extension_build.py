"""Compiles modules to C extensions beside their sources: `python tools/extension_build.py PATH...` in the package's
folder.

mypyc writes one C file for each module. They are compiled on all cores, with their common headers precompiled by gcc. A
per-user cache stores each object file under a digest of its C file, its headers and the compiler's flags, so that a
rebuild compiles only what changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Final

from mypy.version import __version__ as mypy_version
from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slotmq" / "compiled"
CACHE_BYTES_MAX: Final = 400 << 20
"""About 25 builds in which every module differs."""
OPTIMIZATION: Final = "2"
"""With -O3 a message takes the same number of instructions, and compiling takes twice as long."""
FLAGS: Final = ("-fvisibility=hidden",) if os.name == "posix" else ()
"""Modules call each other directly when only their init functions are visible outside the library."""
GCC_FLAGS: Final = (
    "-O1",
    "-fcaller-saves",
    "-fexpensive-optimizations",
    "-findirect-inlining",
    "-finline-functions",
    "-finline-small-functions",
    "-fipa-ra",
    "-foptimize-sibling-calls",
    "-fpartial-inlining",
    "-fpeephole2",
    "-freorder-blocks-algorithm=stc",
    "-fstore-merging",
    "-fstrict-aliasing",
    "-ftree-vrp",
)
"""The useful parts of -O2, for gcc: the same instructions per message, for five sixths of the CPU time to compile."""
LIBRARY: Final = "slotmq"
WORK: Final = "build"
MYPY_SETTINGS: Final = """
[mypy]
follow_imports = skip
ignore_missing_imports = true
[mypy-broker.*,bitarray.*,crc32c.*,pamqp.*]
follow_imports = normal
ignore_missing_imports = false
"""
"""The settings of every build: types come from the package and from the three dependencies whose values compiled
modules compute with. mypy reads nothing else, which halves its time and makes the C files independent of the installed
extras. Style and strictness are checked by `make lint`, not on the machines of users.
"""
HEADERS: Final = f"{WORK}/__native_internal_{LIBRARY}.h"
"""The header, with Python.h, of every module's C file; reading it takes a third of the time of an average file."""
SLICE_BYTES: Final = "Py_ssize_t slice_len = endn - startn;"
"""The length of a slice of bytes in mypyc's `bytes_ops.c`: it is negative if the slice ends before it begins."""
STARTER: Final = """
#include <Python.h>

static PyObject *create(PyObject *spec, PyModuleDef *definition)
{
    PyObject *library = PyImport_ImportModule(LIBRARY);
    PyObject *name = PyObject_GetAttrString(spec, "name");
    PyObject *flat = name ? PyObject_CallMethod(name, "replace", "ss", ".", "___") : NULL;
    PyObject *key = flat ? PyUnicode_FromFormat("init_%U", flat) : NULL;
    PyObject *capsule = library && key ? PyObject_GetAttr(library, key) : NULL;
    PyObject *(*initialize)(void) = capsule ? PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)) : NULL;
    PyObject *module = initialize ? initialize() : NULL;
    Py_XDECREF(capsule);
    Py_XDECREF(key);
    Py_XDECREF(flat);
    Py_XDECREF(name);
    Py_XDECREF(library);
    return module;
}

static PyModuleDef_Slot slots[] = {{Py_mod_create, create}, {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "starter", .m_slots = slots};
#define START(name) PyMODINIT_FUNC PyInit_##name(void) { return PyModuleDef_Init(&definition); }
"""
"""The extension of every module: it calls the library's init function of the imported module.

mypyc writes a different extension for each module; compiling and linking them is a tenth of the work.
"""


class ObjectCache:
    """A cache of files by the digest of their inputs, shared by all builds of the user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def provide(self, digest: str, path: Path, make: Callable[[], object]) -> None:
        """Copy a file from the cache, or make it and cache a copy."""
        kept = self._folder / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(kept, path)
            kept.touch()
        except OSError:
            make()
            try:
                self._keep(path, kept)
            except OSError:  # no home, or a full disk: the next build compiles it again
                pass

    def _keep(self, path: Path, kept: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self._folder) as temporary:
            Path(shutil.copyfile(path, Path(temporary, "copy"))).replace(kept)  # another build never reads half a file

    def prune(self) -> None:
        """Remove the least recently used files, down to the limit."""
        try:
            files = [(path.stat(), path) for path in self._folder.glob("*") if path.is_file()]
            kept_bytes = 0
            for status, path in sorted(files, key=lambda file: file[0].st_mtime, reverse=True):
                kept_bytes += status.st_size
                if kept_bytes > CACHE_BYTES_MAX:
                    path.unlink()
        except OSError:  # another build prunes too
            pass


class ParallelBuild(build_ext):
    """Builds extensions as setuptools does, but on all cores and with a cache."""

    def build_extensions(self) -> None:
        """Compile every C file, link all objects into one library, and write the extension that starts each module."""
        library, *modules = self.extensions
        self._cache = ObjectCache(CACHE)
        command = [*self.compiler.compiler_so, *self.compiler.linker_so]
        version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
        self._tools = [" ".join(command).encode(), version, sys.version.encode(), mypy_version.encode()]
        self._tools += [Path(path).read_bytes() for path in sorted(library.depends)]
        is_gcc = b"Free Software Foundation" in version
        self._flags = [*library.extra_compile_args, *FLAGS, *(GCC_FLAGS if is_gcc else ())]
        self._folders = library.include_dirs
        self._precompiling, self._to_precompile = Lock(), is_gcc
        largest_first = sorted(library.sources, key=os.path.getsize, reverse=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._link(list(pool.map(self._compile, largest_first)), self.get_ext_filename(library.name))
        starter, source = f"{WORK}/starter", f"{WORK}/starter.c"
        starts = [f"START({name})\n" for name in sorted({module.name.rpartition(".")[2] for module in modules})]
        Path(source).write_text(f'#define LIBRARY "{library.name}"\n{STARTER}{"".join(starts)}')
        self._link([self._compile(source)], starter)
        for module in modules:
            shutil.copyfile(starter, self.get_ext_filename(module.name))
        self._cache.prune()

    def _compile(self, source: str) -> tuple[str, str]:
        """Compile a C file, and return the object's path and digest."""
        digest = _digest([*self._tools, " ".join(self._flags).encode(), Path(source).read_bytes()])
        (path,) = self.compiler.object_filenames([source])
        self._cache.provide(digest, Path(path), lambda: self._make_object(source))
        return path, digest

    def _make_object(self, source: str) -> None:
        flags = self._flags
        with self._precompiling:
            if self._to_precompile:
                self._to_precompile = False
                self._precompile()
        if Path(f"{HEADERS}.gch").exists():
            flags = [*flags, "-include", HEADERS]
        self.compiler.compile([source], include_dirs=self._folders, extra_postargs=flags)

    def _precompile(self) -> None:
        """Precompile the headers; if that fails, the compiler reads them with every file."""
        folders = [f"-I{folder}" for folder in (*self._folders, *self.compiler.include_dirs)]
        ends = ["-x", "c-header", HEADERS, "-o", f"{HEADERS}.gch"]
        command = [*self.compiler.compiler_so, *self._flags, *folders, *ends]
        subprocess.run(command, capture_output=True, check=False)

    def _link(self, objects: list[tuple[str, str]], library: str) -> None:
        paths = [path for path, _ in objects]
        digest = _digest([*self._tools, *(digest.encode() for _, digest in objects)])
        self._cache.provide(digest, Path(library), lambda: self.compiler.link_shared_object(paths, library))


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(b"%d:" % len(part) + part)
    return total.hexdigest()


def build(paths: list[str]) -> None:
    """Compile modules of the current folder.

    Raises: SystemExit when mypyc refuses a module; CompileError and LinkError of setuptools.
    """
    settings = Path(WORK, "mypy.ini")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(MYPY_SETTINGS)
    extensions = mypycify(
        ["--config-file", str(settings), *paths],
        opt_level=OPTIMIZATION,
        debug_level="0",
        multi_file=True,
        group_name=LIBRARY,
        target_dir=WORK,
    )
    mend_slices()
    command = ParallelBuild(Distribution({"ext_modules": extensions}))
    command.ensure_finalized()
    command.run()
    shutil.rmtree(WORK)


def mend_slices() -> None:
    """Make a slice of bytes that ends before it begins empty, as in Python; mypyc raises SystemError."""
    source = Path(WORK, "bytes_ops.c")
    text = source.read_text()
    if SLICE_BYTES not in text:
        raise CompileError(f"mypyc {mypy_version} slices bytes in an unknown way")
    source.write_text(text.replace(SLICE_BYTES, SLICE_BYTES.replace(";", " > 0 ? endn - startn : 0;")))


if __name__ == "__main__":
    try:
        build(sys.argv[1:])
    except (CompileError, LinkError) as error:
        sys.exit(f"error: {error}")
    sys.stdout.flush()
    os._exit(0)  # as mypy does: freeing its data takes seconds
