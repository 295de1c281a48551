"""Builds the Dockerfile without Docker: in a folder, with this Python.

A path of the image becomes a path below the folder. FROM, USER and the RUN line of the last stage, which creates the
user and the volume's folder, are skipped: they would change the machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

PLACES: Final = re.compile(r"(?<![\w./])/(opt|src|var)\b")
"""The start of a path of the image."""


class ImageFailed(Exception):
    """A step of the Dockerfile failed; the text says which, and its reason."""


def stages(file: Path) -> list[list[tuple[str, str]]]:
    """Return the stages of a Dockerfile, each a list of instructions and their arguments."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found: list[list[tuple[str, str]]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        if name:
            found[-1].append((name, " ".join(rest.split())))
    return found


class Image:
    """The image of a two-stage Dockerfile: packages are built in the first stage, and run in the second."""

    def __init__(self, project: Path, root: Path) -> None:
        self._project = project
        self._root = root
        self._stages = stages(project / "Dockerfile")

    @property
    def scripts(self) -> Path:
        """The folder of the commands."""
        return self._root / "opt" / "slotmq" / "bin"

    @property
    def folder(self) -> Path:
        """The folder in which the broker runs."""
        return Path(self._moved(self._last("WORKDIR")))

    @property
    def serve(self) -> list[str]:
        """The command that a container runs."""
        return [*json.loads(self._last("ENTRYPOINT")), *json.loads(self._last("CMD"))]

    @property
    def health(self) -> list[str]:
        """The command of the health check."""
        command: list[str] = json.loads(self._last("HEALTHCHECK").partition("CMD ")[2])
        return command

    @property
    def environment(self) -> dict[str, str]:
        """The image's variables, with this machine's PATH after its own."""
        words = [self._moved(word) for word in shlex.split(self._last("ENV"))]
        return {
            name: value.replace("$PATH", os.environ["PATH"]) for name, value in (word.split("=", 1) for word in words)
        }

    def build(self) -> None:
        """Run the first stage. Raises: ImageFailed."""
        interpreter = self._root / "bin" / "python"  # the name that the image has
        interpreter.parent.mkdir(parents=True)
        interpreter.symlink_to(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))
        for name, rest in self._stages[0][1:]:
            if name == "WORKDIR":
                folder = Path(self._moved(rest))
                folder.mkdir(parents=True)
            elif name == "COPY":
                *sources, target = rest.split()
                for source in sources:
                    self._copy(source, folder / target)
            elif name == "RUN":
                self._run(rest, folder)
            else:
                raise ImageFailed(f"the instruction {name} is not supported here")
        self.folder.mkdir(parents=True)

    def _copy(self, source: str, target: Path) -> None:
        """Copy a file, or a folder's content, except for what .dockerignore excludes."""
        path = self._project / source
        names = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
        sent = [one for one in names if not self._is_ignored(one.relative_to(self._project).as_posix())]
        if not sent:
            raise ImageFailed(f"COPY {source}: no such file in the context")
        for one in sent:
            copy = target / (one.name if path.is_file() else one.relative_to(path))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(one, copy)

    def _is_ignored(self, path: str) -> bool:
        """Return whether a path is ignored: the last matching line of .dockerignore decides, also for its folders."""
        ignored = False
        above = [path, *(parent.as_posix() for parent in Path(path).parents)]
        for line in (self._project / ".dockerignore").read_text(encoding="utf-8").split():
            pattern = line.removeprefix("!")
            patterns = [pattern, pattern.removeprefix("**/")]
            if any(fnmatch(one, each) for one in above for each in patterns):
                ignored = not line.startswith("!")
        return ignored

    def _run(self, command: str, folder: Path) -> None:
        environment = {**os.environ, "PATH": f"{self._root / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        command = self._moved(command).replace("--no-cache-dir ", "")  # only an image layer has no use for a cache
        shell = ["/bin/sh", "-c", command]
        done = subprocess.run(
            shell, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise ImageFailed(f"RUN {command} ended with {done.returncode}:\n{done.stdout[-2000:]}")

    def _moved(self, text: str) -> str:
        return PLACES.sub(lambda found: f"{self._root}{found[0]}", text)

    def _last(self, name: str) -> str:
        """Return the arguments of the only instruction of this name in the last stage."""
        (found,) = [rest for instruction, rest in self._stages[-1] if instruction == name]
        return found
