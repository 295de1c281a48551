"""The broker as a subprocess: started on a free port, killed, restarted on the same folder, stopped cleanly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import broker
from tests.deadline import DEADLINE_S, PAUSE_S
from tests.fork_server import ForkedProcess

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = Path(broker.__file__).resolve().parent.parent
"""The folder of the package under test: the project, or the folder it was compiled into."""
RESERVE_BYTES = str(1 << 20)  # pytest keeps the folders of many tests for a while
WITHOUT_HTTP = {"SLOTMQ_HTTP__ENABLED": "false", "SLOTMQ_METRICS__ENABLED": "false"}
READY_LINE = re.compile(r"amqp://(?P<host>[\w.\-\[\]:]+?):(?P<port>\d+)/ \(user (?P<user>\S+)\)")


class BrokerAddress:
    """The address of a broker, with the user and password for a login."""

    def __init__(self, host: str, port: int, user: str = "guest", password: str = "guest") -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """Return the address in an amqp:// URL."""
        parts = urlsplit(url)
        return cls(
            parts.hostname or "127.0.0.1", parts.port or 5672, parts.username or "guest", parts.password or "guest"
        )

    @property
    def url(self) -> str:
        """The URL for a client."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/%2F"


class BrokerProcess:
    """One data folder and the broker that runs on it, if any."""

    def __init__(
        self, folder: Path, *options: str, environment: Mapping[str, str] | None = None, fresh: bool = False
    ) -> None:
        """`fresh` starts a new interpreter instead of forking; a PYTHON* variable in `environment` does, too."""
        self.folder = folder
        self.options = options
        self.environment = dict(environment or {})
        self.fresh = fresh
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.address = BrokerAddress("127.0.0.1", 0)
        self.starts = 0
        folder.parent.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return f"BrokerProcess({self.folder}, starts={self.starts}, pid={self.process and self.process.pid})"

    # ---- life

    def start(self, *options: str) -> BrokerProcess:
        """Start the broker and return after its ready line."""
        self.spawn(*options)
        return self.wait_ready()

    def wait_ready(self) -> BrokerProcess:
        """Wait for the ready line of a spawned process."""
        end = time.monotonic() + DEADLINE_S
        while True:
            found = READY_LINE.search(self.stdout())
            if found is not None and self.stdout().endswith("\n"):
                self.address = BrokerAddress(found["host"], int(found["port"]), found["user"])
                return self
            exit_code = self.running.poll()
            if exit_code is not None:
                raise AssertionError(f"broker exited with {exit_code} before it was ready:\n{self.stderr()}")
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"no ready line within {DEADLINE_S:g} s:\n{self.stdout()}\n{self.stderr()}")
            time.sleep(PAUSE_S)

    def spawn(self, *options: str) -> None:
        """Start the process without waiting, for brokers that are expected to refuse to run."""
        assert self.process is None, "still running"
        self.starts += 1
        words = ["serve", "--port", "0", "--data-dir", str(self.folder)]
        words += ["--log-format", "json", *self.options, *options]
        ours = ("SLOTMQ_", "RABBITMQ_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment |= {"PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": "1"}
        environment |= {"SLOTMQ_STORE__RESERVE_BYTES": RESERVE_BYTES}
        environment |= WITHOUT_HTTP | self.environment
        fresh = self.fresh or any(name.startswith("PYTHON") for name in self.environment)
        # Its own folder as working directory: a broker must not depend on where it was started.
        folder = self.folder.parent
        with self._output("out").open("wb") as out, self._output("err").open("wb") as err:
            if fresh:
                command = [sys.executable, "-m", "broker", *words]
                self.process = subprocess.Popen(
                    command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment, cwd=folder
                )
            else:
                self.process = ForkedProcess(words, environment, folder, out, err, PACKAGE)

    def _output(self, stream: str) -> Path:
        return self.folder.parent / f"{self.folder.name}.{self.starts}.{stream}"

    @property
    def running(self) -> subprocess.Popen[bytes] | ForkedProcess:
        """The process, which must have been started."""
        assert self.process is not None, "not started"
        return self.process

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End the process by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self, *options: str, kill: bool = True) -> BrokerProcess:
        """Kill the process if it runs, or stop it cleanly, and start one on the same folder."""
        if not kill:
            assert self.terminate() == 0, self.stderr()
        self.kill()
        return self.start(*options)

    def terminate(self, deadline_s: float = DEADLINE_S) -> int:
        """Send SIGTERM and return the exit code; a process that outlives the deadline fails the test."""
        self.running.send_signal(signal.SIGTERM)
        return self.wait(deadline_s)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Return the exit code of a process that is expected to end by itself."""
        try:
            code = self.running.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"broker did not end within {deadline_s:g} s:\n{self.stderr()}") from None
        self.process = None
        return code

    # ---- output

    def stdout(self) -> str:
        """Return the standard output since the last start."""
        return self._output("out").read_text(encoding="utf-8", errors="replace")

    def http_url(self, login: str = "guest:guest") -> str:
        """Return the URL of the HTTP server that the last start announced."""
        return f"http://{login}@{self.stdout().partition('HTTP at http://')[2].partition('/')[0]}"

    def stderr(self) -> str:
        """Return the log since the last start."""
        return self._output("err").read_text(encoding="utf-8", errors="replace")

    def log_events(self) -> list[dict[str, Any]]:
        """Return the parsed log lines of the last start; a line that is not a JSON object fails the test. A line that
        is being written is left out.
        """
        events = []
        for line in self.stderr().rpartition("\n")[0].splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                raise AssertionError(f"not a JSON log line: {line!r} in\n{self.stderr()}") from None
            events.append(event)
        return events

    def errors(self) -> Sequence[dict[str, Any]]:
        """Return the log events of level error and above."""
        return [event for event in self.log_events() if event.get("level") in ("error", "critical", "fatal")]

    def rss_bytes(self) -> int:
        """Return the resident memory of the process."""
        status = Path(f"/proc/{self.running.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) * 1024
