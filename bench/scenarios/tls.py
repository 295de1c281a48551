"""TLS beside plain: the same load over both ports of a broker, one after the other (S2, S9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.brokers import Broker
from bench.meter import Figures
from bench.scenario import Limits, NotOffered, size_text
from bench.scenarios.perf_run import perf

_KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "S2": ("transient, confirms, manual ack", ("throughput", "-c", "1000", "-q", "1000", "-A", "100")),
    "S9": ("8 pairs, one unconfirmed message each way at a time", ("pingpong", "-x", "8")),
}


@dataclass(frozen=True, slots=True)
class OverTls:
    """A load over the plain port, then over the port with TLS."""

    kind: str
    body_bytes: int
    stage: str = "flow"
    rounds: int = 2
    relayed: bool = False
    record_bytes: int = 0

    @property
    def name(self) -> str:
        """Return the name of the row."""
        return f"{self.kind}-{self.body_bytes}-tls"

    @property
    def title(self) -> str:
        """Return a title of one line for readers."""
        return f"TLS beside plain: {_KINDS[self.kind][0]}, {size_text(self.body_bytes)}"

    def least_calls(self, limits: Limits) -> None:
        """Return None: the bytes of TLS depend on its records."""

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once over each port. Raises: RunFailed, Fault, OSError; NotOffered without TLS."""
        if not broker.tls:
            raise NotOffered
        plain, over_tls = (self._run(one, limits) for one in (broker, replace(broker, address=broker.tls)))
        return over_tls | {f"plain_{name}": plain[name] for name in ("cpu_us", "per_s") if name in plain}

    def _run(self, broker: Broker, limits: Limits) -> Figures:
        _, (scenario, *flags) = _KINDS[self.kind]
        flags += ["-s", str(self.body_bytes), "-z", f"{limits.seconds}s"]
        result, used = perf(broker, scenario, *flags, limit_s=limits.stall_s)
        totals = result.totals
        return used | {"messages": totals.delivered, "seconds": result.seconds, "per_s": totals.deliver_per_s}
