"""Starts brokers by forking a process that has imported the broker: imports take most of a start's CPU time.

This file is also the program of that process. A request passes it three descriptors: a socket and the files for stdout
and stderr. Over the socket, the client sends arguments, environment and folder as a line of JSON, and receives the pid
and later the exit code in the form of `subprocess`.

Forked brokers have the same seed of `hash()`; tests that depend on it, on sys.path or on /proc need a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

NUMBER: Final = struct.Struct("!i")
PAUSE_S: Final = 0.005


class ForkedProcess:
    """A forked broker, with the interface of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        out: IO[bytes],
        err: IO[bytes],
        package: Path,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._lock = threading.Lock()  # tests call `wait` and `poll` in different threads
        self._link, child = socket.socketpair()
        with child:
            files = [child.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(_control(package), [b"."], files)
        request = {"words": list(words), "environment": dict(environment), "folder": str(folder)}
        self._link.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._number()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with self._lock:
            if self.returncode is None:
                self._link.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    self.returncode = self._number()
                    self._link.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when the process has ended. Raises: subprocess.TimeoutExpired."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end_s is not None and timeout is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(PAUSE_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        data = self._link.recv(NUMBER.size)
        assert data, "the fork server has ended"
        number: int = NUMBER.unpack(data)[0]
        return number


@functools.cache
def _control(package: Path) -> socket.socket:
    """Start a fork server, which ends with this process, for a package folder; return the socket for requests."""
    ours, its = socket.socketpair()
    ours_only = ("SLOTMQ_", "RABBITMQ_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours_only)}
    environment |= {"PYTHONPATH": str(package), "PYTHONUNBUFFERED": "1"}
    with its:
        command = [sys.executable, __file__, str(its.fileno())]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[its.fileno()])

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# ---- the server


class ForkServer:
    """Forks brokers, and reports their exit codes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._clients: dict[int, socket.socket] = {}
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C signals the brokers and the client too
        signal.signal(signal.SIGCHLD, self._reap)

    def next_broker(self) -> dict[str, Any]:
        """Fork for each request; in the child, return the request. Exit when the client closes its socket."""
        while True:
            data, files, *_ = socket.recv_fds(self._control, 1, 3)
            if not data:
                os._exit(0)
            client = socket.socket(fileno=files[0])
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until the pid is known
            pid = os.fork()
            if not pid:
                return self._begin(client, *files[1:])
            self._clients[pid] = client
            for file in files[1:]:
                os.close(file)
            client.sendall(NUMBER.pack(pid))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def _begin(self, client: socket.socket, out: int, err: int) -> dict[str, Any]:
        """Release the server's resources in the child, and return the request."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        with client, client.makefile() as lines:
            request: dict[str, Any] = json.loads(lines.readline())
        self._control.close()
        for other in self._clients.values():
            other.close()
        for file, stream in ((out, 1), (err, 2)):
            os.dup2(file, stream)
            os.close(file)
        return request

    def _reap(self, *_signal: object) -> None:
        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._clients.pop(pid) as client, contextlib.suppress(OSError):
                client.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def serve() -> NoReturn:
    """Import all modules that a start needs; then serve requests, and run the broker in each child."""
    import uvloop  # noqa: F401

    import broker.cli.parser
    import broker.cli.running
    import broker.cli.serve
    import broker.cluster.broker_node
    import broker.manage.listener
    import broker.process  # noqa: F401
    from broker.cli.main import main

    assert threading.active_count() == 1
    request = ForkServer(socket.socket(fileno=int(sys.argv[1]))).next_broker()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if not sys.flags.safe_path:
        sys.path[0] = request["folder"]
    sys.argv = ["broker", *request["words"]]
    sys.exit(main(request["words"]))


if __name__ == "__main__":
    serve()
