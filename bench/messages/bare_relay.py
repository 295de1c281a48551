"""A bare relay of the same bytes: the cost below which no broker can go."""

from __future__ import annotations

from bench.brokers import relay
from bench.run import Figures
from broker.perf.conductor import Conductor
from broker.perf.crew import Interruption
from broker.perf.faults import RunFailed
from broker.perf.parts import Load
from broker.perf.progress import RunProgress
from broker.perf.receiver import ReceiverPace
from broker.perf.spool import Material

_KEYS = 10_000


def relayed(
    body_bytes: int, seconds: float, *, consumers: int = 1, per_s: float | None = None, window: int = 0
) -> Figures:
    """Return the cost per message of a relay that sends every byte to its consumer, and the latency.

    Without consumers the relay only reads, and with a window it confirms; the figures are then per publish.

    Raises: RunFailed.
    """
    keys = tuple(f"bench.{number % 97:02d}.{number:08d}" for number in range(_KEYS))
    with relay() as broker:
        load = Load(
            address=broker.address,
            material=Material("bench", keys, body_bytes, relayed=True),
            producers=1,
            queues=(("relay",),) * consumers,
            demand=ReceiverPace(0, body_bytes),
            window=window,
            per_s=per_s,
            seconds=seconds,
            copies=None,
            processes=1,
        )
        with Interruption() as interruption:
            outcome = Conductor(load, RunProgress(quiet=True), interruption, broker.processes).run()
    used = outcome.process()
    count, took_s = outcome.tally.published, outcome.publish_s
    if consumers:
        count, took_s = outcome.tally.delivered, outcome.deliver_s
    if outcome.failures or not used or not count:
        raise RunFailed(outcome.failures[0] if outcome.failures else "nothing came through the relay")
    figures: Figures = {"messages": count, "cpu_us": used.cpu_s / count * 1e6}
    if not per_s:
        figures["per_s"] = count / took_s
    times = outcome.confirm_times if window else outcome.due_times
    if not times.count:
        return figures
    p50, p99 = times.percentiles((50, 99))
    return figures | {"p50_us": p50 / 1e3, "p99_us": p99 / 1e3}
