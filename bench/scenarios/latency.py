"""Latency: a steady rate on a fixed schedule, and the time of each message from when it was due (S6)."""

from __future__ import annotations

from dataclasses import dataclass

from bench.brokers import Broker
from bench.meter import Figures
from bench.scenario import Limits, size_text
from bench.scenarios.perf_run import perf
from bench.scenarios.relayed import relayed
from broker.perf.crew import RunFailed


@dataclass(frozen=True, slots=True)
class Latency:
    """One publisher, one consumer without acks, transient messages."""

    name: str
    body_bytes: int
    stage: str = "flow"
    rounds: int = 99
    relayed: bool = True
    record_bytes: int = 0

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        return f"latency at 1,000 messages/s, transient, auto-ack, {size_text(self.body_bytes)}"

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return one read and one write: messages arrive one by one."""
        return 1.0, 1.0

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError."""
        if broker.relay:
            return relayed(self.body_bytes, 1, limits.latency_seconds, per_s=limits.rate)
        flags = ["-s", str(self.body_bytes), "-r", str(limits.rate), "-a", "-e", "bench-latency", "-k", "bench.latency"]
        flags += ["--keys", str(limits.keys), "-z", f"{limits.latency_seconds}s"]
        result, used = perf(broker, "latency", *flags, limit_s=limits.latency_seconds + limits.stall_s)
        if result.latency_us is None:
            raise RunFailed("nothing was delivered")
        late = result.figures.get("sent_late_p99")
        return used | {
            "messages": result.totals.delivered,
            "p50_us": result.latency_us.p50,
            "p99_us": result.latency_us.p99,
            "max_us": result.latency_us.max,
            **({"sent_late_p99_us": late.value} if late else {}),
        }
