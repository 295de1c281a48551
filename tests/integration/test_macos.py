"""The broker as developers on macOS run it: `macos/sitecustomize.py` takes from Python what macOS lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pika
import pytest
from pika.exceptions import AMQPError

from tests.broker_process import PROJECT, READY_LINE
from tests.deadline import DEADLINE_S

MACOS = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": os.pathsep.join([str(PROJECT / "tests" / "macos"), str(PROJECT)]),  # sources: compiled for Linux
    "SLOTMQ_HTTP__ENABLED": "false",
    "SLOTMQ_METRICS__ENABLED": "false",
    "SLOTMQ_STORE__RESERVE_BYTES": str(1 << 20),
}
SYNCS = """
import fcntl, os, sys
from pathlib import Path
from broker.store.files import Files
path, calls = Path(sys.argv[1]), []
real = fcntl.fcntl
fcntl.fcntl = lambda number, command, *rest: calls.append(command) or real(number, command, *rest)
file = Files().open(path / "file", write=True, create=True)
file.write_at(0, b"x")
file.sync()
Files().sync_folder(path)
file.allocate(1, 100)
file.drop_cache()
print(calls, file.size(), file.direct, file.read_cached(0, 1), Files().read(path / "file")[:1])
"""


def on_macos(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as on macOS, and return what it printed."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=MACOS, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


class MacBroker:
    """`slotmq serve` as on macOS, and one client."""

    def __init__(self, folder: Path) -> None:
        words = ["-m", "broker", "serve", "--port", "0", "--data-dir", str(folder / "data")]
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words], cwd=folder, env=MACOS, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._stack = ExitStack()
        self._stack.enter_context(self._process)
        self._stack.callback(self._process.kill)

    def __enter__(self) -> Self:
        with ExitStack() as ending:
            ending.push(self._stack)  # also when the broker does not start
            assert self._process.stdout is not None
            found = READY_LINE.search(self._process.stdout.readline())
            assert found is not None, self._log.read_text()
            connection = pika.BlockingConnection(pika.ConnectionParameters(port=int(found["port"])))
            self._stack.push(suppress(AMQPError))  # the broker may have ended
            self._stack.callback(connection.close)
            self.channel: Any = connection.channel()
            self.channel.confirm_delivery()
            ending.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def end(self, how: signal.Signals) -> int:
        """End the broker and return its exit code."""
        self._process.send_signal(how)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code of a broker that ends."""
        return self._process.wait(DEADLINE_S)


def test_a_durable_sync_reaches_the_drive(tmp_path: Path) -> None:
    """F_FULLFSYNC syncs files and folders; what else is missing has a substitute."""
    done = on_macos("-c", SYNCS, str(tmp_path), folder=tmp_path)
    assert (done.stdout, done.stderr) == ("[51, 51] 101 False None b'x'\n", "")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_serves_and_recovers(tmp_path: Path, end: signal.Signals) -> None:
    """Confirmed messages are there after a stop and after a kill."""
    durable = pika.BasicProperties(delivery_mode=2)
    with MacBroker(tmp_path) as broker:
        broker.channel.queue_declare("q", durable=True)
        for number in range(100):
            broker.channel.basic_publish("", "q", b"%d" % number * 1000, durable)
        assert broker.end(end) == (0 if end is signal.SIGTERM else -end)
    with MacBroker(tmp_path) as broker:
        found = [broker.channel.basic_get("q", True)[2] for _ in range(100)]
        assert found == [b"%d" % number * 1000 for number in range(100)]
        assert broker.end(signal.SIGTERM) == 0


def test_commands_work(tmp_path: Path) -> None:
    """`status`, `doctor` and `stop` need nothing of Linux, and `doctor` says which of its checks it cannot make."""
    with MacBroker(tmp_path) as broker:
        status = on_macos("-m", "broker", "status", "--data-dir", "data", folder=tmp_path)
        assert (status.returncode, status.stderr) == (0, "")
        doctor = on_macos("-m", "broker", "doctor", "--data-dir", "data", folder=tmp_path)
        assert "file system: unknown" in doctor.stdout
        assert "a sync takes" in doctor.stdout
        assert doctor.stderr == ""
        stop = [sys.executable, "-m", "broker", "stop", "--data-dir", "data"]
        with subprocess.Popen(stop, cwd=tmp_path, env=MACOS, stdout=subprocess.PIPE, text=True) as stopping:
            assert broker.wait() == 0  # `stop` polls the pid, which exists until its parent has asked
            assert stopping.communicate(timeout=DEADLINE_S)[0].endswith("stopped\n")


@pytest.mark.slow
def test_a_broker_in_the_test_process(tmp_path: Path) -> None:
    """`broker.testing` works: in a loop, in a thread, on disk, with its clock, and with its fixtures."""
    command = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base")]
    done = subprocess.run(
        [sys.executable, *command, "tests/integration/test_testing.py", "-k", "loop or thread or disk or wins"],
        cwd=PROJECT, env=MACOS, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
