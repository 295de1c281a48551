"""Runs one broker as a process: starts it, stops it by its pid, and restarts it on the same folder."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from broker.perf.faults import Refusal
from broker.perf.machine import ProcessTree
from broker.perf.peer import Address, PeerConnection

START_LIMIT_S = 60.0
_STOP_LIMIT_S = 20.0
_LOOK_S = 0.01
_TAIL_LINES = 15

_NOT_THEIRS = ("SLOTMQ_", "RABBITMQ_", "PYTHONDONTWRITEBYTECODE")


class NotStarted(Exception):
    """A broker did not become ready."""


class Service:
    """A process that writes into a log; `processes` are it and its children, after any number of starts."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.command = list(command)
        self.processes = ProcessTree(0)
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which must not be running; it may become ready after this returns."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_clean_environment() | self._environment,
                cwd=self._log.parent,
                start_new_session=True,  # Ctrl-C reaches only the bench, which then stops its brokers in order
            )
        self.processes.root = self._process.pid

    def stop(self, *, killed: bool = False) -> None:
        """Stop the process and its children: by a signal first, killed by pid after a timeout or on request."""
        process = self._process
        if process is None:
            return
        pids = self.processes.pids()
        if killed:
            _kill(pids)
        else:
            process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            _kill(pids)
            process.wait()
        self._process = None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """Return the output of the process since its last start."""
        return self._log.read_text(errors="replace")

    def await_handshake(self, address: Address) -> None:
        """Wait until the process accepts a client. Raises: NotStarted."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self.alive:
            try:
                PeerConnection(address, 1).close()
            except (OSError, Refusal):
                time.sleep(_LOOK_S)
            else:
                return
        raise self.failed()

    def failed(self) -> NotStarted:
        """Return the error with the last output of the process."""
        tail = "\n".join(self.said().splitlines()[-_TAIL_LINES:])
        return NotStarted(f"{self.name} did not become ready; it said:\n{tail}")


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def _clean_environment() -> dict[str, str]:
    """Return our environment without the settings of any broker, so that each runs in its shipped configuration.

    Python may keep its compiled bytecode; otherwise every start would compile it again.
    """
    return {name: text for name, text in os.environ.items() if not name.startswith(_NOT_THEIRS)}
