"""The loads that `slotmq perf` runs: S1 to S6, S8 to S10, bindings, full speed, TLS beside plain."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from bench.brokers import Broker, relay
from bench.machine import fdatasync_us
from bench.messages.limits import Limits
from bench.perf_run import perf
from bench.run import Figures
from bench.stage import NotOffered
from broker.figures.numerals import size_text
from broker.perf.conductor import Conductor
from broker.perf.faults import RunFailed
from broker.perf.parts import Load
from broker.perf.process_group import Interruption
from broker.perf.progress import RunProgress
from broker.perf.receiver import ReceiverPace
from broker.perf.spool import Material

FANOUT: Final = 50  # queues
FRAME_BYTES: Final = 131_064  # of a body; a larger one takes several frames
_PAIRS: Final = ("pingpong", "-x", "8")
_SAID_PAIRS: Final = "8 pairs, one unconfirmed message each way at a time"
_FLIGHT_BYTES: Final = 20 << 20  # large bodies have a smaller window
_LEAST_WINDOW: Final = 4
_ACKS: Final = ("-c", "{window}", "-q", "{prefetch}", "-A", "{ack_every}")
_FLOWS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "S1": ("transient, auto-ack", ("-a",)),
    "S2": ("transient, confirms, manual ack", _ACKS),
    "S3": ("persistent, durable, confirms, manual ack", (*_ACKS, "--persistent")),
}
_UNBOUNDED: Final = ("-c", "1000000", "-q", "1000", "-A", "100")  # a window that no run fills
_UNSENT: Final = ("--unsent", "16KiB")  # excludes the wait in the publisher's own send buffer
_EXTRA: Final = {
    "queued_at_end": ("queued", 1.0),
    "declare_bindings": ("declare_s", 1.0),
    "memory_per_binding": ("each_bytes", 1.0),
    "memory_per_connection": ("each_bytes", 1.0),
    "open_mean": ("open_ms", 1e-3),
    "broker_cpu_per_open": ("open_cpu_ms", 1e-3),
}
"""Figures of single scenarios of `slotmq perf`, with our names and units."""
KEYS: Final = tuple(f"bench.{number % 97:02d}.{number:08d}" for number in range(10_000))


@dataclass(frozen=True, slots=True)
class PerfLoad:
    """A scenario of `slotmq perf`.

    Shapes: `words` are its name and flags, with fields of the limits in braces; `seconds` names the field with the
    length of a run; `copies` is the number of deliveries of each message. With a `queue`, the scenario first runs
    unmeasured, so that every route is cached, and the queue is deleted afterwards. The bare relay has `consumers` and
    `relay_window`, and the rate of the limits if `paced`. With `only_setup`, messages do not count.
    """

    name: str
    title: str
    words: tuple[str, ...]
    body_bytes: int = 16
    seconds: str = "seconds"
    copies: int = 1
    queue: str = ""
    stage: str = "flow"
    rounds: int = 99
    relayed: bool = True
    paced: bool = False
    relay_window: int = 0
    consumers: int = 1
    beside_disk: bool = False
    over_tls: bool = False
    only_setup: bool = False

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once; TLS once over each port. Raises: RunFailed, Fault, OSError; NotOffered without TLS."""
        if broker.relay:
            per_s, seconds = limits.rate if self.paced else None, getattr(limits, self.seconds)
            return relayed(self.body_bytes, seconds, consumers=self.consumers, per_s=per_s, window=self.relay_window)
        if not self.over_tls:
            return self._run(broker, limits)
        if not broker.tls:
            raise NotOffered
        plain, over_tls = (self._run(one, limits) for one in (broker, replace(broker, address=broker.tls)))
        return over_tls | {f"plain_{name}": plain[name] for name in ("cpu_us", "per_s") if name in plain}

    def _run(self, broker: Broker, limits: Limits) -> Figures:
        """Return the figures of one run.

        Units: latencies are from when a message was due, at full speed from when it was sent, without consumers until
        its confirm; `queued` counts the messages in the queues when the publisher ended; `fdatasync_us` is one append
        and sync on the broker's disk, and `beyond_us` the rest of a confirm's latency, both medians; `held_bytes` is
        the growth of the broker's memory at its peak, `flight_bytes` the size of the bodies in flight.
        """
        seconds = getattr(limits, self.seconds)
        window = min(limits.window, max(_LEAST_WINDOW, _FLIGHT_BYTES // self.body_bytes))
        paced = replace(limits, window=window, prefetch=window, ack_every=min(limits.ack_every, max(1, window // 10)))
        scenario, *flags = (word.format(**asdict(paced)) for word in self.words)
        synced_us = fdatasync_us(broker.folder or Path(gettempdir())) if self.beside_disk else 0.0
        try:
            if self.queue:
                perf(broker, scenario, *flags, "-z", f"{limits.warm_up_seconds}s", limit_s=limits.stall_s)
            result, used = perf(broker, scenario, *flags, "-z", f"{seconds}s", limit_s=seconds + limits.bind_seconds)
        finally:
            if self.queue:
                broker.delete(self.queue)
        totals, times = result.totals, result.latency_us or result.confirm_latency_us
        messages = totals.delivered or totals.published
        used.pop("cpu_us", None)  # computed below, because what counts as a message depends on the load
        figures = used | {"messages": messages, "seconds": result.seconds}
        if scenario == "routing":
            messages = 0 if self.only_setup else totals.published
        if self.copies > 1 or self.stage == "full":
            figures |= {"published_per_s": totals.publish_per_s * self.copies, "queued": 0.0}
        if "cpu_s" in used and messages:
            figures["cpu_us"] = used["cpu_s"] / messages * 1e6
        if not self.paced and messages:
            figures["per_s"] = messages / result.seconds
        if times:
            figures |= {"p50_us": times.p50, "p99_us": times.p99}
        if times and self.beside_disk:
            figures |= {"fdatasync_us": synced_us, "beyond_us": times.p50 - synced_us}
        if used and self.body_bytes > FRAME_BYTES:
            held_bytes, flight_bytes = used["peak_rss_bytes"] - broker.idle_bytes, window * self.body_bytes
            figures |= {"held_bytes": held_bytes, "flight_bytes": flight_bytes, "held_times": held_bytes / flight_bytes}
        for name, (ours, factor) in _EXTRA.items():
            if name in result.figures:
                figures[ours] = result.figures[name].value * factor
        return figures


def flow(kind: str, size: int) -> PerfLoad:
    """Return one of S1 to S3, which differ in guarantees: one publisher, one queue, one consumer, at full speed.

    Large bodies have brokers of their own: memory that another scenario had freed would hide what they use.
    """
    said, words = _FLOWS[kind]
    large = size > FRAME_BYTES
    title = f"{said}, {size_text(size)}{', several frames' if large else ''}"
    name = f"{kind}-{size}"
    queue = f"bench-{name}"
    words = ("throughput", "-s", str(size), *words, "-u", queue, "-e", queue, "-k", "bench.key")
    words = (*words, "--keys", "10" if large else "{keys}")
    window = 0 if kind == "S1" else max(_LEAST_WINDOW, min(1000, _FLIGHT_BYTES // size))
    stage, rounds = (name, 2) if large else ("flow", 99)
    return PerfLoad(name, title, words, size, queue=queue, stage=stage, rounds=rounds, relay_window=window)


def fanout(size: int) -> PerfLoad:
    """Return S4: a publisher whose confirms limit its lead, and consumers without acks; per delivery."""
    title = f"fan-out into {FANOUT} queues, transient, auto-ack, {size_text(size)}, per delivery"
    words = ("fanout", "-y", str(FANOUT), "-s", str(size), "-c", "{window}", "-a", "--keys", "{keys}")
    return PerfLoad(f"S4-{size}", title, words, size, "fanout_seconds", FANOUT, relayed=False)


def routing(name: str, bindings: int) -> PerfLoad:
    """Return S5: keys that were never published before; one in a hundred matches a wildcard binding."""
    title = f"{bindings:,} wildcard bindings, 1 % match, ever new keys, transient, 16 B, per publish"
    words = ("routing", "--bindings", str(bindings), "-s", "16", "-c", "{window}")
    return PerfLoad(name, title, words, stage="routing", rounds=2, consumers=0)


def declared(bindings: int) -> PerfLoad:
    """Return the declaration of bindings in a fresh broker, because freed memory would hide theirs."""
    words = ("routing", "--bindings", str(bindings), "-C", "100")
    title = f"{bindings:,} wildcard bindings: declare, memory"
    return PerfLoad("bindings", title, words, stage="bindings", rounds=1, relayed=False, only_setup=True)


def latency(size: int) -> PerfLoad:
    """Return S6: a steady rate on a fixed schedule; a latency counts from when the message was due."""
    title = f"latency at 1,000 messages/s, transient, auto-ack, {size_text(size)}"
    words = ("latency", "-s", str(size), "-r", "{rate}", "-a", "-e", "bench-latency", "-k", "bench.latency")
    return PerfLoad(f"S6-{size}", title, (*words, "--keys", "{keys}"), size, "latency_seconds", paced=True)


CONNECTIONS: Final = PerfLoad(
    "S8",
    "idle connections with one channel each: open, memory",
    ("connections", "-n", "{connections}", "-w", "1"),
    stage="connections",
    rounds=1,
    relayed=False,
)
"""S8: idle connections in a fresh broker: the cost of opening one, and its memory."""
PINGPONG: Final = PerfLoad("S9", f"{_SAID_PAIRS}, per message", _PAIRS, relayed=False)
"""S9: pairs of clients that each wait for every single message, which rules out batching."""
LONE_CONFIRM: Final = PerfLoad(
    "S10",
    "persistent, durable, 16 B, one at a time: publish until confirm",
    ("throughput", "-y", "0", "-s", "16", "-c", "1", "--persistent"),
    beside_disk=True,
    relay_window=1,
    consumers=0,
)
"""S10: one publisher of persistent messages that waits for the confirm of each."""


def full_speed(kind: str, size: int) -> PerfLoad:
    """Return one publisher that sends as fast as the broker reads, without waiting for consumers or confirms."""
    said, words, copies = {
        "S1": ("transient, no confirms, auto-ack", ("throughput", "-a"), 1),
        "S2": ("transient, confirms that nothing waits for, manual ack", ("throughput", *_UNBOUNDED), 1),
        "S4": (f"fan-out into {FANOUT} queues, no confirms, auto-ack", ("fanout", "-y", str(FANOUT), "-a"), FANOUT),
    }[kind]
    title = f"a publisher at full speed, {said}, {size_text(size)}, per delivery"
    words = (*words, "-s", str(size), *_UNSENT)
    name = f"{kind}-{size}-full"
    return PerfLoad(name, title, words, size, "full_seconds", copies, stage="full", rounds=2, relayed=False)


def over_tls(kind: str, size: int) -> PerfLoad:
    """Return a load that runs first over the plain port of a broker, then over its TLS port."""
    said, words = (_SAID_PAIRS, _PAIRS) if kind == "S9" else (_FLOWS[kind][0], ("throughput", *_FLOWS[kind][1]))
    title = f"TLS beside plain: {said}, {size_text(size)}"
    words = (*words, "-s", str(size))
    return PerfLoad(f"{kind}-{size}-tls", title, words, size, rounds=2, relayed=False, over_tls=True)


def mqtt(name: str, said: str, *words: str, subscribers: int = 1, paced: bool = False) -> PerfLoad:
    """Return a load of MQTT clients with bodies of 16 bytes, in brokers of its own; per delivery."""
    words = ("mqtt", "-s", "16", "-y", str(subscribers), *words)
    return PerfLoad(
        f"{name}-16",
        f"MQTT: {said}, 16 B, per delivery",
        words,
        copies=subscribers,
        stage="mqtt",
        rounds=2,
        relayed=False,
        paced=paced,
    )


def relayed(
    body_bytes: int, seconds: float, *, consumers: int = 1, per_s: float | None = None, window: int = 0
) -> Figures:
    """Return the cost per message and the latency of a relay that sends every byte to its consumers.

    Without consumers the relay only reads, and with a window it confirms; the figures are then per publish.

    Raises: RunFailed.
    """
    with relay() as broker:
        load = Load(
            address=broker.address,
            material=Material("bench", KEYS, body_bytes, relayed=True),
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
