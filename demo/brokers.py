"""The brokers of a run: processes that are started, killed with -9, restarted on their folder and port, and stopped."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from demo.ledger import Failed

READY_LINE = re.compile(r"amqp://\S+")
WITHOUT_HTTP = {"SLOTMQ_HTTP__ENABLED": "false", "SLOTMQ_METRICS__ENABLED": "false"}  # unless asked for
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class BrokerFailed(Failed):
    """A broker did not start, ended by itself or did not stop when told to."""


class Broker:
    """A broker started by a command, in its own process group, so that a signal reaches all its processes."""

    def __init__(self, name: str, command: str, folder: Path) -> None:
        self.name = name
        self.state = "starting"
        self.url = ""
        self.data = folder / name
        self._command = command
        self._folder = folder
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker and wait until it is ready.

        The first start chooses a free port, each later start uses the same port. The output goes to files beside the
        data folder.
        Raises: BrokerFailed when it ends, or prints no amqp:// URL in time.
        """
        self._starts += 1
        port = urlsplit(self.url).port or 0
        words = [word.format(port=port, folder=self.data) for word in shlex.split(self._command)]
        began_s = time.monotonic()
        with self._path("out").open("wb") as out, self._path("err").open("wb") as err:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**WITHOUT_HTTP, **os.environ}, start_new_session=True,
            )  # fmt: skip
        while time.monotonic() - began_s < READY_TIMEOUT_S:
            if ready := READY_LINE.search(self.output):
                self.url = ready.group().rstrip(".,;)")
                self.state = "up"
                return
            self.check()
            time.sleep(0.02)
        raise self._failed(f"was not ready after {READY_TIMEOUT_S:.0f} s")

    @property
    def output(self) -> str:
        """Return the standard output of the last start."""
        return self._path("out").read_text(errors="replace")

    def check(self) -> None:
        """Raise BrokerFailed if the broker has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise self._failed(f"ended by itself with exit code {self._process.returncode}")

    def kill(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL, "killed")
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP, "frozen")

    def come_back(self) -> None:
        """Go on after a freeze, start again after a kill. Raises: BrokerFailed."""
        if self.state == "frozen":
            self._signal(signal.SIGCONT, "up")
        else:
            self.start()

    def stop(self) -> None:
        """End it by SIGTERM. Raises: BrokerFailed when it does not exit with code 0 in time."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM, "stopped")
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failed(f"did not end within {STOP_TIMEOUT_S:.0f} s after SIGTERM") from None
        self._process = None
        if code != 0:
            raise self._failed(f"ended with exit code {code} after SIGTERM")

    def _signal(self, number: int, state: str) -> None:
        self.state = state
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self.name}-{self._starts}.{kind}"

    def _failed(self, text: str) -> BrokerFailed:
        """Return the error, with the last lines that the broker wrote."""
        lines = [*self.output.splitlines()[-10:], *self._path("err").read_text(errors="replace").splitlines()[-10:]]
        return BrokerFailed("\n    ".join([f"the broker {self.name} {text}", *lines]))


def together(work: Callable[[Broker], None], brokers: Iterable[Broker]) -> None:
    """Start, stop or bring back brokers at the same time. Raises: BrokerFailed."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, brokers))
