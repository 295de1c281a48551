"""A publisher at full speed: what it sends ahead of the consumers, and the latency of what arrives (S1, S2, S4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.brokers import Broker
from bench.meter import Figures
from bench.scenario import CALL_BYTES, Limits, size_text
from bench.scenarios.flow import message_bytes
from bench.scenarios.perf_run import perf
from broker.perf.crew import RunFailed

_QUEUES = 50
_UNSENT = "16KiB"  # what waits in the publisher's own kernel says nothing about the broker
_UNBOUNDED = "1000000"  # unconfirmed messages: more than any run has
_KINDS: Mapping[str, tuple[str, tuple[str, ...], int]] = {
    "S1": ("transient, no confirms, auto-ack", ("throughput", "-a"), 1),
    "S2": (
        "transient, confirms that nothing waits for, manual ack",
        ("throughput", "-c", _UNBOUNDED, "-q", "1000", "-A", "100"),
        1,
    ),
    "S4": (f"fan-out into {_QUEUES} queues, no confirms, auto-ack", ("fanout", "-y", str(_QUEUES), "-a"), _QUEUES),
}


@dataclass(frozen=True, slots=True)
class FullSpeed:
    """One publisher that sends as fast as the broker reads, without waiting for consumers or confirms."""

    kind: str
    body_bytes: int
    stage: str = "full"
    rounds: int = 2
    relayed: bool = False
    record_bytes: int = 0

    @property
    def name(self) -> str:
        """Return the name of the row."""
        return f"{self.kind}-{self.body_bytes}-full"

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        return f"a publisher at full speed, {_KINDS[self.kind][0]}, {size_text(self.body_bytes)}, per delivery"

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return reads and writes per delivery when every call moves as much as possible."""
        came, went = message_bytes(self.body_bytes)
        return came / CALL_BYTES / _KINDS[self.kind][2], went / CALL_BYTES

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError.

        Units: `queued` counts the messages in the queues when the publisher ended; the latencies are of the delivered
        messages, from when each was sent.
        """
        _, (scenario, *flags), copies = _KINDS[self.kind]
        flags += ["-s", str(self.body_bytes), "--unsent", _UNSENT, "-z", f"{limits.full_seconds}s"]
        result, used = perf(broker, scenario, *flags, limit_s=limits.full_seconds + limits.stall_s)
        totals, latency = result.totals, result.latency_us
        if latency is None:
            raise RunFailed("nothing was delivered")
        queued = result.figures.get("queued_at_end")
        if used:
            used["cpu_us"] = used["cpu_s"] / totals.delivered * 1e6
        return used | {
            "messages": totals.delivered,
            "seconds": result.seconds,
            "per_s": totals.deliver_per_s,
            "published_per_s": totals.publish_per_s * copies,
            "queued": queued.value if queued else 0,
            "p50_us": latency.p50,
            "p99_us": latency.p99,
        }
