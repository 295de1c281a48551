"""A launcher for a Java without the vector module: Spark always requests that module, and the JVM would not start."""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.pipeline.spark.java_release import VECTOR_MODULE
from broker.pipeline.spark.user_folder import cache_folder

__all__ = ["shim_home", "shim_text"]

MODE: Final = 0o700


def shim_text(binary: Path) -> str:
    """Return the launcher's source. Only MLlib's arithmetic would use the module, and works without it."""
    return f"""#!/bin/sh
for word do
  shift
  case "$word" in --add-modules={VECTOR_MODULE}) ;; *) set -- "$@" "$word" ;; esac
done
exec {shlex.quote(str(binary))} "$@"
"""


def shim_home(home: Path, version: str, environment: Mapping[str, str]) -> Path:
    """Return a folder for JAVA_HOME, whose launcher starts the Java of `home`.

    Invariant: the launcher appears atomically, also with concurrent writers. Raises: OSError.
    """
    text = shim_text(home / "bin" / "java")
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    made = cache_folder(environment) / "java" / f"{version}-{key}"
    launcher = made / "bin" / "java"
    if not _is(launcher, text):
        launcher.parent.mkdir(parents=True, exist_ok=True)
        _replace(launcher, text)
    return made


def _is(launcher: Path, text: str) -> bool:
    try:
        return launcher.read_text(encoding="utf-8") == text and os.access(launcher, os.X_OK)
    except (OSError, ValueError):
        return False


def _replace(launcher: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=launcher.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), MODE)
        os.replace(name, launcher)  # noqa: PTH105 - the same call
    except BaseException:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
