"""Fan-out: each message is routed to many queues, each with a wildcard binding and a consumer (S4); per delivery."""

from __future__ import annotations

from dataclasses import dataclass

from bench.brokers import Broker
from bench.meter import Figures
from bench.scenario import CALL_BYTES, Limits, size_text
from bench.scenarios.flow import message_bytes
from bench.scenarios.perf_run import perf
from bench.scenarios.relayed import relayed


@dataclass(frozen=True, slots=True)
class Fanout:
    """A publisher with confirms, which bound its lead, and consumers without acks."""

    name: str
    body_bytes: int
    queues: int = 50
    stage: str = "flow"
    rounds: int = 99
    relayed: bool = True
    record_bytes: int = 0

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        return f"fan-out into {self.queues} queues, transient, auto-ack, {size_text(self.body_bytes)}, per delivery"

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return reads and writes per delivery: one read for all queues, a write for each consumer."""
        came, went = message_bytes(self.body_bytes)
        return came / CALL_BYTES / self.queues, went / CALL_BYTES

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError."""
        if broker.relay:
            return relayed(self.body_bytes, self.queues, limits.seconds)
        flags = ["-y", str(self.queues), "-s", str(self.body_bytes), "-c", str(limits.fanout_window), "-a"]
        flags += ["--keys", str(limits.keys), "-z", f"{limits.fanout_seconds}s"]
        result, used = perf(broker, "fanout", *flags, limit_s=limits.stall_s)
        return used | {
            "messages": result.totals.delivered,
            "seconds": result.seconds,
            "per_s": result.totals.deliver_per_s,
        }
