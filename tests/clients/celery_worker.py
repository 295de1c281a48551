"""A Celery worker as a process: started, killed with its pool, and its output read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from broker.cli.control_client import ask
from tests.broker_process import PACKAGE, PROJECT, BrokerProcess
from tests.clients.celery_app import SETTINGS_VARIABLE
from tests.deadline import DEADLINE_S, wait_until

NODE = "worker@clients"


class CeleryWorker:
    """A worker process and its pool, in a separate process group."""

    def __init__(self, folder: Path, settings: dict[str, Any], *options: str) -> None:
        self.folder = folder
        self.settings = settings
        self.options = options
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> CeleryWorker:
        """Start the worker and return when it reports that it is ready."""
        self.starts += 1
        command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.clients.celery_app", "worker"]
        command += ["--hostname", NODE, "--loglevel", "INFO", *self.options]
        environment = os.environ | {"PYTHONPATH": f"{PACKAGE}:{PROJECT}", SETTINGS_VARIABLE: json.dumps(self.settings)}
        with self._output.open("wb") as output:  # a file: a pipe without a reader would stop the worker
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        wait_until(self._is_ready, "a worker that is ready")
        return self

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the worker ended:\n{self.output}"
        return f"{NODE} ready." in self.output

    @property
    def _output(self) -> Path:
        return self.folder / f"worker.{self.starts}.log"

    @property
    def output(self) -> str:
        """Return the output of the last start."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """End the worker and its pool by SIGKILL."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process = None

    def wait(self) -> int:
        """Return the exit code of a worker that was asked to end."""
        assert self.process is not None
        code = self.process.wait(DEADLINE_S)
        self.kill()  # the rest of its pool
        return code


def prefetch(broker: BrokerProcess) -> int:
    """Return the prefetch that the broker applies to the worker."""
    (count,) = [row["prefetch_count"] for row in ask(broker.folder, "list_consumers") if row["queue"] == "celery"]
    return int(count)
