"""Starts and calls processes that each hold one topic index, of the interpreted or the compiled package."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.brokers import PROJECT
from broker.perf.faults import RunFailed

ANSWER_LIMIT_S = 120.0


class Cell:
    """One process with the package of a folder; it answers each request with one dictionary of figures."""

    def __init__(self, package: Path, memory_bound_bytes: int) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(package), str(PROJECT)]),
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
        """Return the answer to one request. Raises: RunFailed; after a late answer the cell is unusable."""
        self.begin(do, **request)
        return self.answer(do, limit_s)

    def begin(self, do: str, **request: Any) -> None:
        """Send a request whose answer is fetched later. Raises: RunFailed."""
        entrance = self._process.stdin
        assert entrance is not None
        try:
            entrance.write(json.dumps({"do": do, **request}).encode() + b"\n")
            entrance.flush()
        except (BrokenPipeError, ValueError):
            raise RunFailed("its process ended") from None

    def answer(self, do: str, limit_s: float = ANSWER_LIMIT_S) -> dict[str, Any]:
        """Return the answer to the request that `begin` sent. Raises: RunFailed."""
        exit_ = self._process.stdout
        assert exit_ is not None
        if not select.select([exit_], [], [], limit_s)[0]:
            self.close()
            raise RunFailed(f"{do} took longer than {limit_s:.0f} s")
        line = exit_.readline()
        if not line:
            raise RunFailed("its process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunFailed(f"{do}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def compiles(package: Path, module: str) -> bool:
    """Return whether a module of a package is compiled."""
    path = package.joinpath(*module.split("."))
    return any(path.parent.glob(f"{path.name}.*.so")) or any(path.parent.glob(f"{path.name}.*.pyd"))
