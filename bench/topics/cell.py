"""Starts and calls processes that each hold one topic index, of the interpreted or the compiled package."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.brokers import PROJECT

ANSWER_LIMIT_S = 120.0


class NoAnswer(Exception):
    """A cell failed, or answered too late; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Package:
    """The folder of one form of the broker's package, and the name of that form."""

    form: str
    folder: Path

    def compiles(self, module: str) -> bool:
        """Return whether one of its modules is compiled."""
        path = self.folder.joinpath(*module.split("."))
        return any(path.parent.glob(f"{path.name}.*.so")) or any(path.parent.glob(f"{path.name}.*.pyd"))


INTERPRETED = Package("interpreted", PROJECT)


class Cell:
    """One process; it answers each request with one dictionary of figures."""

    def __init__(self, package: Package, memory_bound_bytes: int) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(package.folder), str(PROJECT)]),
            "PYTHONHASHSEED": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.topics.cell_process", str(memory_bound_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, do: str, limit_s: float = ANSWER_LIMIT_S, **request: Any) -> dict[str, Any]:
        """Return the answer to one request. Raises: NoAnswer; after a late answer the cell is unusable."""
        self.begin(do, **request)
        return self.answer(do, limit_s)

    def begin(self, do: str, **request: Any) -> None:
        """Send a request whose answer is fetched later. Raises: NoAnswer."""
        entrance = self._process.stdin
        assert entrance is not None
        try:
            entrance.write(json.dumps({"do": do, **request}).encode() + b"\n")
            entrance.flush()
        except (BrokenPipeError, ValueError):
            raise NoAnswer("its process ended") from None

    def answer(self, do: str, limit_s: float = ANSWER_LIMIT_S) -> dict[str, Any]:
        """Return the answer to the request that `begin` sent. Raises: NoAnswer."""
        exit_ = self._process.stdout
        assert exit_ is not None
        if not select.select([exit_], [], [], limit_s)[0]:
            self.close()
            raise NoAnswer(f"{do} took longer than {limit_s:.0f} s")
        line = exit_.readline()
        if not line:
            raise NoAnswer("its process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NoAnswer(f"{do}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def compiled_package(folder: Path) -> Package:
    """Return the compiled package, built in a folder. Raises: NoAnswer when it cannot be compiled."""
    command = [sys.executable, str(PROJECT / "compiled_build.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoAnswer(said[-1] if said else f"compiling ended with {done.returncode}")
    return Package("compiled", folder)
