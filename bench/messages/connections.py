"""Idle connections, each with one open channel: the cost of opening and of keeping one (S8)."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field

from bench.brokers import Broker
from bench.messages.companion import Companion
from bench.messages.flow import AFTERGLOW_S
from bench.messages.scenario import Limits
from bench.meter import Meter
from bench.run import Figures
from broker.perf.peer import PeerConnection

_SPARE_FILES = 200
_SETTLE_S = 1.0  # a broker may free a handshake's memory slightly later


@dataclass(slots=True)
class Connections:
    """Opens connections one after the other and leaves them idle.

    Memory is that of a broker's first round: later rounds reuse memory that earlier connections freed.
    """

    name: str = "S8"
    title: str = "idle connections with one channel each: open, memory"
    stage: str = "connections"
    rounds: int = 99
    relayed: bool = True
    record_bytes: int = 0
    _known: set[str] = field(default_factory=set)

    def least_calls(self, limits: Limits) -> tuple[float, float]:
        """Return reads and writes per connection: each of four answers depends on its request."""
        return 4.0, 4.0

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError."""
        count = min(limits.connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES)
        opening, keeping = Meter(broker), Meter(broker)
        peers: list[PeerConnection] = []
        with Companion(broker):
            try:
                PeerConnection(broker.address, 1).close()  # a user's first login may cost a password hash
                opening.start()
                keeping.start()
                begun = time.monotonic()
                peers += [PeerConnection(broker.address, 1) for _ in range(count)]
                seconds = time.monotonic() - begun
                time.sleep(AFTERGLOW_S)
                used = opening.stop(count)
                time.sleep(_SETTLE_S)
                kept = keeping.stop(count)
            finally:
                for peer in peers:
                    peer.close()
        figures = used | {"connections": count, "seconds": seconds, "open_ms": seconds / count * 1e3}
        if used:
            figures["open_cpu_ms"] = used["cpu_us"] / 1e3
            if broker.name not in self._known:
                figures["each_bytes"] = kept["rss_growth_bytes"] / count
        self._known.add(broker.name)
        return figures
