"""The brokers of a run: processes that are started, killed, restarted on the same folder and port, and stopped."""

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from bench.service import WITHOUT_HTTP, Service

READY_LINE = re.compile(r"amqp://[^\s,;)\"]+")


class Broker(Service):
    """A broker started by a command; its output is in a file beside the data folder."""

    def __init__(self, name: str, command: str, folder: Path) -> None:
        environment = {**WITHOUT_HTTP, **os.environ}  # without HTTP, unless the environment enables it
        super().__init__(f"the broker {name}", (), folder / f"{name}.log", environment, Path.cwd())
        self.state = "starting"
        self.url = ""
        self.data = folder / name
        self._words = shlex.split(command)

    def start(self) -> None:
        """Start the broker and wait until it is ready; the first start chooses a free port, each later one uses it.

        Raises: BrokerFailed when it ends, or prints no amqp:// URL in time.
        """
        port = urlsplit(self.url).port or 0
        self.command = [word.format(port=port, folder=self.data) for word in self._words]
        super().start()
        self.url = self.await_line(READY_LINE)[0].rstrip(".")
        self.state = "up"

    def check(self) -> None:
        """Raise BrokerFailed if the broker has ended by itself."""
        if self.exit_code is not None:
            raise self.failed(f"ended by itself with exit code {self.exit_code}")

    def kill(self) -> None:
        self.state = "killed"
        self.stop(killed=True)

    def freeze(self) -> None:
        self.state = "frozen"
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after a freeze, start again after a kill. Raises: BrokerFailed."""
        if self.state == "frozen":
            self.signal(signal.SIGCONT)
            self.state = "up"
        else:
            self.start()

    def end(self) -> None:
        """Stop the broker by SIGTERM. Raises: BrokerFailed when it does not exit with code 0 in time."""
        self.state = "stopped"
        if code := self.stop():
            raise self.failed(f"ended with exit code {code} after SIGTERM")


def in_parallel(work: Callable[[Broker], None], brokers: Iterable[Broker]) -> None:
    """Start, stop or resume brokers at the same time. Raises: BrokerFailed."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, brokers))
