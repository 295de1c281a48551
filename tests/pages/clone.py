"""A clone of the project and a shell environment in which the pages' installation commands need no network."""

from __future__ import annotations

import os
import shlex
import shutil
import site
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.broker_process import PROJECT

__all__ = ["clone", "environment_of", "files"]

# `python3 -m venv` of a page also adds this environment's packages, so that pip downloads nothing.
PYTHON3 = """\
#!/bin/sh
{python} "$@" || exit
if [ "$1 $2" = "-m venv" ]; then
  for folder in "$3"/lib/python*/site-packages; do echo {packages} > "$folder/packages.pth"; done
fi
"""


def files() -> list[str]:
    """Return the names of the files that a clone of the working tree would have."""
    if not (PROJECT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout")
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.rstrip("\0").split("\0") if (PROJECT / name).is_file()]


def clone(folder: Path) -> Path:
    """Copy these files into a folder, and return it."""
    for name in files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, folder / name)
    return folder


def environment_of(folder: Path, tools: Path) -> dict[str, str]:
    """Return the variables with which a shell in the clone has a `python3` and a pip that need no network."""
    shim = tools / "python3"
    packages = shlex.quote(site.getsitepackages()[0])
    shim.write_text(PYTHON3.format(python=shlex.quote(sys.executable), packages=packages))
    shim.chmod(0o755)
    return {
        "PATH": f"{folder / '.venv' / 'bin'}:{tools}:{os.environ['PATH']}",
        "SLOTMQ_COMPILE": "0",  # compiling is tested by tools/packages
        **({"PIP_NO_BUILD_ISOLATION": "0"} if find_spec("hatchling") else {}),  # "0" means no isolation
    }
