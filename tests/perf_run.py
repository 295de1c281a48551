"""Runs `slotmq perf` in a process."""

from __future__ import annotations

import subprocess
import sys

from broker.perf.result import Result
from tests.broker_process import PROJECT
from tests.deadline import DEADLINE_S


def command(*words: str) -> list[str]:
    """Return the command line of a run."""
    return [sys.executable, "-m", "broker", "perf", *words]


class PerfRun:
    """A `slotmq perf` process that has ended."""

    def __init__(self, *words: str, limit: int | None = None, kind: str = "") -> None:
        """Run it; `limit` limits its open files, with `kind` only the soft (-S) or hard (-H) limit."""
        started = command(*words)
        if limit is not None:
            started = ["sh", "-c", f'ulimit {kind} -n {limit}; exec "$@"', "sh", *started]
        ended = subprocess.run(started, capture_output=True, text=True, timeout=DEADLINE_S, cwd=PROJECT, check=False)
        self.code, self.out, self.err = ended.returncode, ended.stdout, ended.stderr

    @property
    def result(self) -> Result:
        """Return the result of a run with --json."""
        return Result.from_json(self.out)

    @property
    def line(self) -> str:
        """Return the error, which must be one line."""
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()
