"""The broker of a run: a process that is started, killed with -9, restarted on its folder and port, and stopped."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from demo.ledger import Address

READY_LINE = re.compile(r"amqp://\S+")
WITHOUT_HTTP = {"SLOTMQ_HTTP__ENABLED": "false", "SLOTMQ_METRICS__ENABLED": "false"}  # unless asked for
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class BrokerFailed(Exception):
    """The broker did not start, ended by itself or did not stop when told to."""


def parse_url(url: str) -> Address:
    """Return the parts of an amqp:// URL; missing parts are guest's on the local machine."""
    parts = urlsplit(url)
    return Address(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 5672,
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        vhost=unquote(parts.path[1:]) or "/",
    )


class BrokerProcess:
    """The broker started by a command, in its own process group, so that a kill ends all its processes."""

    def __init__(self, command: str, folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._port = 0
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[Address, float]:
        """Start the broker; return its address and how many seconds it took to be ready.

        The first start chooses a free port, each later start uses the same port. The output goes to files beside the
        data folder.
        Raises: BrokerFailed when it ends, or prints no amqp:// URL in time.
        """
        self._starts += 1
        words = [word.format(port=self._port, folder=self._folder / "broker") for word in shlex.split(self._command)]
        began_s = time.monotonic()
        with self.output_path.open("wb") as output, self.error_path.open("wb") as errors:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**WITHOUT_HTTP, **os.environ},
                start_new_session=True,
            )
        self._process = process
        while time.monotonic() - began_s < READY_TIMEOUT_S:
            ready = READY_LINE.search(self.output_path.read_text(errors="replace"))
            if ready:
                address = parse_url(ready.group().rstrip(".,;)"))
                self._port = address.port
                return address, time.monotonic() - began_s
            if process.poll() is not None:
                raise BrokerFailed(
                    f"the broker ended with exit code {process.returncode} before it was ready\n{self.last_words()}"
                )
            time.sleep(0.02)
        raise BrokerFailed(f"the broker was not ready after {READY_TIMEOUT_S:.0f} s\n{self.last_words()}")

    @property
    def output_path(self) -> Path:
        """Return the file with the standard output of the last start."""
        return self._folder / f"broker-{self._starts}.out"

    @property
    def error_path(self) -> Path:
        """Return the file with the standard error of the last start."""
        return self._folder / f"broker-{self._starts}.err"

    def check(self) -> None:
        """Check that the broker is alive.

        Raises: BrokerFailed when it has ended.
        """
        if self._process is not None and self._process.poll() is not None:
            raise BrokerFailed(
                f"the broker ended by itself with exit code {self._process.returncode}\n{self.last_words()}"
            )

    def kill(self) -> None:
        """Send SIGKILL to the whole process group and wait until it is gone."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> float:
        """Send SIGTERM; return how many seconds the broker took to exit with code 0.

        Raises: BrokerFailed on another exit code, or when it did not exit in time.
        """
        if self._process is None:
            return 0.0
        process, began_s = self._process, time.monotonic()
        self.signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(
                f"the broker did not end within {STOP_TIMEOUT_S:.0f} s after SIGTERM\n{self.last_words()}"
            ) from None
        self._process = None
        if code != 0:
            raise BrokerFailed(f"the broker ended with exit code {code} after SIGTERM\n{self.last_words()}")
        return time.monotonic() - began_s

    def last_words(self) -> str:
        """Return the last lines that the broker wrote."""
        lines = [
            line
            for path in (self.output_path, self.error_path)
            for line in path.read_text(errors="replace").splitlines()[-10:]
        ]
        return "\n".join(f"    {line}" for line in lines)

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)
