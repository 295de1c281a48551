"""Runs a broker as a process: start, stop or kill, and restart on the same folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from broker.perf.faults import Refusal
from broker.perf.machine import ProcessTree
from broker.perf.peer import Address, PeerConnection

START_LIMIT_S = 60.0
_STOP_LIMIT_S = 20.0
WITHOUT_HTTP = {"SLOTMQ_HTTP__ENABLED": "false", "SLOTMQ_METRICS__ENABLED": "false"}
_POLL_S = 0.01
_TAIL_LINES = 15

_REMOVED_VARIABLES = ("SLOTMQ_", "RABBITMQ_", "PYTHONDONTWRITEBYTECODE")


class BrokerFailed(Exception):
    """A broker did not become ready, ended by itself, or did not stop cleanly."""


class Service:
    """A process with its output in a log; `processes` are the process and its children, also after a restart."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: dict[str, str], folder: Path | None = None
    ) -> None:
        """`folder` is the working directory, by default the folder of the log."""
        self.name = name
        self.command = list(command)
        self.processes = ProcessTree(0)
        self._log = log
        self._environment = environment
        self._folder = folder or log.parent
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process, which must not be running, without waiting until it is ready."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_clean_environment() | self._environment,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C reaches only the bench, which then stops its brokers cleanly
            )
        self.processes.root = self._process.pid

    def stop(self, *, killed: bool = False) -> int | None:
        """Stop the process with SIGTERM; kill its group if `killed` or after a timeout.

        Return the exit code, None if it was not running.
        """
        process = self._process
        if process is None:
            return None
        if killed:
            self.signal(signal.SIGKILL)
        else:
            process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            process.wait()
        self._process = None
        return process.returncode

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    @property
    def alive(self) -> bool:
        return self._process is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended by itself."""
        return None if self._process is None else self._process.poll()

    def output(self) -> str:
        """Return the output of the process since its last start."""
        return self._log.read_text(errors="replace")

    def await_handshake(self, address: Address) -> None:
        """Wait until the process accepts a client. Raises: BrokerFailed."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self.alive:
            try:
                PeerConnection(address, 1).close()
            except (OSError, Refusal):
                time.sleep(_POLL_S)
            else:
                return
        raise self.failed()

    def await_line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until the output matches, and return the first match. Raises: BrokerFailed."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if found := pattern.search(self.output()):
                return found
            if not self.alive:
                raise self.failed(f"ended with exit code {self.exit_code} before it was ready")
            time.sleep(_POLL_S)
        raise self.failed()

    def failed(self, how: str = "did not become ready") -> BrokerFailed:
        """Return the error, with the last lines of the output."""
        tail = "\n".join(self.output().splitlines()[-_TAIL_LINES:])
        return BrokerFailed(f"{self.name} {how}; it said:\n{tail}")


def _clean_environment() -> dict[str, str]:
    """Return our environment without settings of brokers, so that each runs in its shipped configuration.

    PYTHONDONTWRITEBYTECODE is removed, too: with it, every start would compile all modules again.
    """
    return {name: text for name, text in os.environ.items() if not name.startswith(_REMOVED_VARIABLES)}
