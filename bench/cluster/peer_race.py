"""Runs a job queue on PostgreSQL: one process publishes, another works, and both are measured."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from bench.brokers import PROJECT
from bench.cluster.cases import Case
from bench.cluster.ground import Ground
from broker.perf.crew import RunFailed

_LIMIT_S = 300.0
_CONNECTIONS = {1: 16, 100: 2}  # for one message per commit, many publishers at once


def race(case: Case, ground: Ground) -> dict[str, Any]:
    """Return the figures of one run. Raises: RunFailed."""
    url = ground.database_url()
    _end(_Process(case, "install", url))
    worker = _Process(case, "work", url, batch=100)
    publisher = _Process(case, "publish", url, batch=case.batch)
    try:
        worker.await_ready()
        publisher.await_ready()
        before_s = ground.database.usage().cpu_s
        publisher.begin()
        published, worked = _end(publisher), _end(worker)
        database_s = ground.database.usage().cpu_s - before_s
    finally:
        for process in (worker, publisher):
            process.kill()
    seconds = worked["ended_s"] - published["begun_s"]
    return {
        "messages": case.messages,
        "seconds": seconds,
        "per_s": case.messages / seconds,
        "p50_us": worked["p50_us"],
        "p99_us": worked["p99_us"],
        "broker_us": (published["cpu_s"] + worked["cpu_s"]) / case.messages * 1e6,
        "database_us": database_s / case.messages * 1e6,
    }


class _Process:
    """One process of the library."""

    def __init__(self, case: Case, verb: str, url: str, batch: int = 1) -> None:
        options = {
            "--messages": case.messages,
            "--size": case.size,
            "--queues": case.queues,
            "--batch-size": batch,
            "--connections": _CONNECTIONS[case.batch] if verb == "publish" else 4,
        }
        words = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "bench.cluster.peers", case.peer, verb, url, *words]
        self.name = f"{case.peer} {verb}"
        self._process = subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def await_ready(self) -> None:
        """Wait until the process is connected."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RunFailed(f"{self.name} did not start: {self.ended()[1][-500:]}")

    def begin(self) -> None:
        """Let the publisher begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def ended(self) -> tuple[str, str]:
        """Wait for the end and return the output."""
        return self._process.communicate(timeout=_LIMIT_S)

    def kill(self) -> None:
        """End the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _end(process: _Process) -> dict[str, Any]:
    try:
        out, errors = process.ended()
        figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        raise RunFailed(f"{process.name} failed: {errors.strip()[-500:]}") from None
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{process.name} took longer than {_LIMIT_S:.0f} s") from None
    return figures
