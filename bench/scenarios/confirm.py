"""The lone confirm: one publisher of persistent messages that waits for the confirm of each (S10)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from bench.brokers import Broker
from bench.machine import fdatasync_us
from bench.meter import Figures
from bench.scenario import Limits
from bench.scenarios.flow import message_bytes
from bench.scenarios.perf_run import perf
from bench.scenarios.relayed import relayed
from broker.perf.crew import RunFailed

_BODY_BYTES = 16


@dataclass(frozen=True, slots=True)
class LoneConfirm:
    """Persistent messages into a durable queue, one at a time; no consumer."""

    name: str = "S10"
    title: str = "persistent, durable, 16 B, one at a time: publish until confirm"
    stage: str = "flow"
    rounds: int = 99
    relayed: bool = True

    @property
    def record_bytes(self) -> int:
        """Return how many bytes of a message must be on disk before its confirm."""
        return message_bytes(_BODY_BYTES)[0]

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return one read of the publish, and one write each of the record and of the confirm."""
        return 1.0, 2.0

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError.

        Units: `fdatasync_us` is one append and sync on the broker's disk right before the run, and `beyond_us` what a
        confirm takes beyond it, both medians.
        """
        if broker.relay:
            return relayed(_BODY_BYTES, 0, limits.seconds, window=1)
        synced_us = fdatasync_us(broker.folder or Path(gettempdir()))
        flags = ["-y", "0", "-s", str(_BODY_BYTES), "-c", "1", "--persistent", "-z", f"{limits.seconds}s"]
        result, used = perf(broker, "throughput", *flags, limit_s=limits.stall_s)
        if result.confirm_latency_us is None:
            raise RunFailed("nothing was confirmed")
        return used | {
            "messages": result.totals.published,
            "seconds": result.seconds,
            "per_s": result.totals.confirm_per_s,
            "p50_us": result.confirm_latency_us.p50,
            "p99_us": result.confirm_latency_us.p99,
            "fdatasync_us": synced_us,
            "beyond_us": result.confirm_latency_us.p50 - synced_us,
        }
