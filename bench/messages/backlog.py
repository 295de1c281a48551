"""Persistent messages without a consumer: publish, memory, a restart, a crash, and the drain (S7)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.brokers import Broker
from bench.messages.limits import Limits
from bench.meter import Meter
from bench.perf_run import perf
from bench.run import Figures
from broker.perf.faults import RunFailed
from broker.perf.peer import PeerConnection
from broker.perf.wire import PUBLISH_CHANNEL

_QUEUE = "bench-backlog"
_BODY_BYTES = 100
_SETTLE_S = 2.0
_DRAIN_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queues up messages, then measures the broker's memory, restarts and drain."""

    name: str = "S7"
    title: str = "persistent, durable, 100 B, no consumer: publish, memory, restart, drain"
    stage: str = "backlog"
    rounds: int = 1
    relayed: bool = False

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once. Raises: RunFailed, Fault, OSError, NotStarted."""
        _queue(broker, delete=True)
        figures = _publish(broker, limits)
        stock = int(figures["messages"])
        if broker.service:
            figures["restart_s"] = _restart(broker, stock, killed=False)
            figures["crash_s"] = _restart(broker, stock, killed=True)
        drained, used = perf(
            broker, "throughput", "-x", "0", "-u", _QUEUE, "-p", "-a", "-D", str(stock), "-s", str(_BODY_BYTES),
            "-z", "0", limit_s=_DRAIN_LIMIT_S,
        )  # fmt: skip
        figures["drain_per_s"] = drained.totals.deliver_per_s
        if "cpu_us" in used:
            figures["drain_cpu_us"] = used["cpu_us"]
        _queue(broker, delete=True)
        return figures


def _queue(broker: Broker, *, delete: bool = False) -> int:
    """Declare the queue and return how many messages it has, or delete it."""
    control = PeerConnection(broker.address, PUBLISH_CHANNEL)
    try:
        count = control.declare_queue(_QUEUE, durable=True)
        if delete:
            control.delete(_QUEUE, _QUEUE)
    finally:
        control.close()
    return count


def _publish(broker: Broker, limits: Limits) -> Figures:
    """Publish the stock, or as much of it as the time allows."""
    memory = Meter(broker)
    _queue(broker)
    memory.start()
    words = ("-y", "0", "-u", _QUEUE, "-p", "--persistent", "-c", str(limits.window), "-C", str(limits.stock))
    result, used = perf(
        broker, "throughput", *words, "-s", str(_BODY_BYTES), "-z", f"{limits.stock_seconds}s",
        limit_s=limits.stock_seconds + limits.stall_s,
    )  # fmt: skip
    time.sleep(_SETTLE_S)
    used |= {name: size for name, size in memory.stop(1).items() if name.endswith("_bytes")}
    totals = result.totals
    return used | {"messages": totals.confirmed, "seconds": result.seconds, "per_s": totals.confirm_per_s}


def _restart(broker: Broker, stock: int, *, killed: bool) -> float:
    """Restart the broker and return the seconds until it accepts a client and reports that all messages are there.

    Raises: RunFailed when messages are missing; NotStarted.
    """
    seconds = broker.restart(killed=killed)
    begun = time.monotonic()
    ready = _queue(broker)
    if ready != stock:
        raise RunFailed(f"{ready} of {stock} messages after a {'crash' if killed else 'restart'}")
    return seconds + time.monotonic() - begun
