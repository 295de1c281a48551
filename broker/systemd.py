"""Notify systemd that the broker is ready, alive, reloading or stopping.

Source: sd_notify(3): one datagram of lines `KEY=value` to the socket that $NOTIFY_SOCKET names.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.event_log import get_logger

_log = get_logger()

TICK_S: Final = 1.0  # between two reports of a recovery
EXTENSION_S: Final = 30  # how long systemd waits after each report of a recovery


class Systemd:
    """Notify systemd from the event loop, so that a hanging loop sends nothing and the watchdog ends the process.

    Without $NOTIFY_SOCKET nothing is sent.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        pid: int,
        loop: asyncio.AbstractEventLoop,
        recovery: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`recovery` returns the progress of a running recovery, else an empty mapping."""
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._loop = loop
        self._recovery = recovery
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = self._stops = False
        self._watchdog_s = 0.0
        if environment.get("WATCHDOG_PID", str(pid)) == str(pid):
            self._watchdog_s = _number(environment.get("WATCHDOG_USEC", "")) / 1_000_000

    def start(self) -> None:
        if self._address:
            self._tick()

    def ready(self, status: str) -> None:
        """Report that clients can connect, after a start or a reload."""
        self._is_ready = True
        if not self._stops:
            self._notify("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that the settings are being read again; `ready` follows."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the broker stops; a second call does nothing."""
        if not self._stops:
            self._stops = True
            self._notify("STOPPING=1", "STATUS=Stopping")

    def waiting(self, step: Mapping[str, Any]) -> None:
        """Report the progress of the stop. Shapes: `step` is a report of `Stopping`."""
        if "waits_for" in step:
            self._notify(f"STATUS=Stopping: waits for {step['waits_for']}")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        lines = ["WATCHDOG=1"] if self._watchdog_s else []
        progress = self._recovery()
        if progress:
            lines += [f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}", f"STATUS={_recovery_status(progress)}"]
        if lines:
            self._notify(*lines)
        intervals_s = [self._watchdog_s / 2] if self._watchdog_s else []
        intervals_s += [] if self._is_ready else [TICK_S]
        if intervals_s:
            self._timer = self._loop.call_later(min(intervals_s), self._tick)

    def _notify(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _log.warning("systemd.not_told", reason=error.strerror or str(error))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _recovery_status(progress: Mapping[str, Any]) -> str:
    left_s = progress["eta_s"]
    rest = "" if left_s is None else f", {left_s:.0f} s left"
    vhost = progress["vhost"].encode("unicode_escape").decode()
    return (
        f"Recovering vhost {vhost} ({progress['vhost_number']} of {progress['vhosts']}): {progress['percent']} %{rest}"
    )
