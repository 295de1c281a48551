"""The progress of recovery: a thread reports it; the event loop reads and logs it, and can stop the recovery."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.event_log import get_logger

if TYPE_CHECKING:
    from broker.store.recovery import RecoveryProgress

_log = get_logger()


class RecoveryStopped(Exception):
    """The broker was stopped while it recovered; the next start recovers from the beginning."""


class RecoveryWatch:
    """Watch the recovery of the vhosts, one after another.

    Invariant: only the loop calls the methods, except `report`, which the recovering thread calls.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._vhost = ""
        self._number = self._vhosts = 0
        self._began = 0.0
        self._progress: RecoveryProgress | None = None
        self._stopped = False

    def begin(self, vhost: str, number: int, vhosts: int) -> None:
        """Begin to watch a vhost, for example number 1 of 3."""
        self._progress = None
        self._vhost, self._number, self._vhosts = vhost, number, vhosts
        self._began = self._clock()

    def end(self) -> None:
        """Stop watching, because no more vhosts are recovered."""
        self._vhost = ""

    def report(self, progress: RecoveryProgress) -> None:
        """Record the progress of the vhost. Raises: RecoveryStopped after `stop`."""
        if self._stopped:
            raise RecoveryStopped
        self._progress = progress

    def stop(self) -> None:
        """Stop the recovery at its next report."""
        self._stopped = True

    def log(self) -> None:
        _log.info("store.recovering", **self.facts())

    def facts(self) -> dict[str, Any]:
        """Return the progress, or an empty dictionary if no vhost is being recovered.

        Shapes: `percent`, `done_bytes`, `total_bytes` and `eta_s` refer to the log of one vhost; `eta_s` is None until
            a part of the log was read. `vhost_number` counts from 1 to `vhosts`.
        """
        if not self._vhost:
            return {}
        progress = self._progress
        done_bytes, total_bytes = (progress.done_bytes, progress.total_bytes) if progress is not None else (0, 0)
        spent_s = self._clock() - self._began
        return {
            "vhost": self._vhost,
            "vhost_number": self._number,
            "vhosts": self._vhosts,
            "percent": done_bytes * 100 // (total_bytes or 1),
            "done_bytes": done_bytes,
            "total_bytes": total_bytes,
            "records": 0 if progress is None else progress.records,
            "eta_s": round(spent_s * (total_bytes - done_bytes) / done_bytes, 1) if done_bytes else None,
        }
