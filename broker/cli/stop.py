"""Carry out `slotmq stop`: stop the broker and, except over HTTP, wait until its process has ended."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from broker.cli.broker_url import AnyBroker, BrokerUrl, called
from broker.cli.control_client import Unanswered, ask, conversation, read_line
from broker.cli.table import cell, counted

POLL_S: Final = 0.05  # between two checks of a process, where the system does not report its end
CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid, as SO_PEERCRED returns them


class Deadline:
    """The time by which the broker must have stopped, if there is a timeout."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s
        self.waits_for = ""

    def left_s(self) -> float | None:
        """Return the remaining time, or None without a timeout. Raises: Unanswered if no time is left."""
        if self._end is None:
            return None
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            waits = f": it waits for {self.waits_for}" if self.waits_for else ""
            raise Unanswered(f"the broker has not stopped within {self._timeout_s:g} s{waits}")
        return left_s


def stop(broker: AnyBroker, timeout_s: float | None, *, drain_s: int | None = None) -> int:
    """Stop a broker and, except over HTTP, wait for its end. With `drain_s`, its clients may finish first.

    Raises: Unanswered if no broker answers, if it refuses, or if it has not stopped cleanly in time; BadUsage.
    """
    options: dict[str, Any] = {} if drain_s is None else {"drain": True, "drain_s": drain_s}
    if isinstance(broker, BrokerUrl):
        ask(broker, "stop", **options)
        print("stopping")  # HTTP reports nothing further
        return 0
    deadline = Deadline(timeout_s)
    with conversation(broker, "stop", **options) as client:
        assert isinstance(client, socket.socket)
        process = ServerProcess(client)
        is_clean = _follow(client, process, deadline)
    process.wait(deadline)
    if not is_clean:
        raise Unanswered(f"{called(broker)} has ended, but not cleanly: its log says why")
    print("stopped")
    return 0


class ServerProcess:
    """The process at the other end of a socket. Where the system does not report its pid, the broker sends it."""

    def __init__(self, client: socket.socket) -> None:
        self.pid = 0
        self._descriptor: int | None = None
        if hasattr(socket, "SO_PEERCRED"):
            answer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            self.pid = CREDENTIALS.unpack(answer)[0]  # 0 for a process outside this container
        if self.pid and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._descriptor = os.pidfd_open(self.pid)

    def wait(self, deadline: Deadline) -> None:
        """Wait until the process has ended, if its pid is known. Raises: Unanswered."""
        if self._descriptor is not None:
            try:
                while not select.select([self._descriptor], [], [], deadline.left_s())[0]:
                    pass
            finally:
                os.close(self._descriptor)
            return
        while self.pid and _is_running(self.pid):
            deadline.left_s()
            time.sleep(POLL_S)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _follow(client: socket.socket, process: ServerProcess, deadline: Deadline) -> bool:
    """Print each step that the stop waits for, and return whether the broker stopped cleanly. Raises: Unanswered."""
    buffer = bytearray()
    while True:
        client.settimeout(deadline.left_s())
        try:
            line = read_line(client, buffer)
        except TimeoutError:
            continue  # `left_s` raises the error
        except ConnectionError:
            return False
        if not line:
            return False
        answer = json.loads(line)
        step = answer.get("progress")
        if step is None:
            raise Unanswered(str(answer.get("error")))
        if "stopped" in step:
            return True
        if "waits_for" in step:
            deadline.waits_for = _step_text(step)
            print(f"waiting for {deadline.waits_for}", flush=True)
        elif not process.pid and not hasattr(socket, "SO_PEERCRED"):
            process.pid = int(step["pid"])


def _step_text(step: Mapping[str, Any]) -> str:
    what = str(step["waits_for"])
    if "count" in step:
        return counted(int(step["count"]), cell(what))
    if what == "sync":
        return f"the sync of {counted(int(step['bytes']), 'bytes')}"
    if what == "checkpoint":
        return f"the checkpoint of vhost '{cell(step['vhost'])}'"
    return cell(what)
