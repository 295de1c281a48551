"""Ping-pong: pairs of clients that each wait for every single message, which rules out batching (S9)."""

from __future__ import annotations

from dataclasses import dataclass

from bench.brokers import Broker, relay
from bench.meter import Figures
from bench.scenario import Limits
from bench.scenarios.perf_run import perf


@dataclass(frozen=True, slots=True)
class Pingpong:
    """One unconfirmed message in flight in each pair."""

    name: str = "S9"
    stage: str = "flow"
    rounds: int = 99
    relayed: bool = True
    record_bytes: int = 0
    pairs: int = 8

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        return f"{self.pairs} pairs, one unconfirmed message each way at a time, per message"

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return one read and one write: messages arrive one by one."""
        return 1.0, 1.0

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, NotStarted, OSError."""
        if broker.relay:
            with relay("bench.pair_relay") as pair_relay:
                return self._measure(pair_relay, limits)
        return self._measure(broker, limits)

    def _measure(self, broker: Broker, limits: Limits) -> Figures:
        result, used = perf(
            broker, "pingpong", "-x", str(self.pairs), "-z", f"{limits.seconds}s", limit_s=limits.stall_s
        )
        return used | {
            "messages": result.totals.delivered,
            "seconds": result.seconds,
            "per_s": result.totals.deliver_per_s,
        }
