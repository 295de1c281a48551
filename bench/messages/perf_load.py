"""The loads that `slotmq perf` runs: fan-out, latency, ping-pong, lone confirms, full speed, TLS beside plain."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from bench.brokers import Broker, relay
from bench.machine import fdatasync_us
from bench.messages.relays import relayed
from bench.messages.scenario import CALL_BYTES, Limits, message_bytes, size_text
from bench.perf_run import perf
from bench.run import Figures
from bench.stage import NotOffered

FANOUT: Final = 50  # queues
_PAIRS: Final = 8
_WINDOW: Final = ("-c", "{window}", "-q", "{prefetch}", "-A", "{ack_every}")
_UNBOUNDED: Final = ("-c", "1000000", "-q", "1000", "-A", "100")  # more unconfirmed messages than any run has
_UNSENT: Final = ("--unsent", "16KiB")  # what waits in the publisher's own kernel says nothing about the broker


@dataclass(frozen=True, slots=True)
class PerfLoad:
    """A scenario of `slotmq perf`.

    Shapes: `words` are its name and flags, in which the fields of the limits stand in braces; `seconds` is the field
    with the length of a run; `calls` are the least reads and writes, `copies` the deliveries of a message. The bare
    relay runs it with these `consumers`, `relay_window` and at the rate if it is `paced`.
    """

    name: str
    title: str
    words: tuple[str, ...]
    body_bytes: int
    seconds: str = "seconds"
    copies: int = 1
    calls: tuple[float, float] | None = None
    stage: str = "flow"
    rounds: int = 99
    relayed: bool = True
    paced: bool = False
    relay_window: int = 0
    consumers: int = 1
    persistent: bool = False
    over_tls: bool = False

    @property
    def record_bytes(self) -> int:
        """Return how many bytes of a message must be on disk before its confirm."""
        return message_bytes(self.body_bytes)[0] if self.persistent else 0

    def least_calls(self, limits: Limits) -> tuple[float, float] | None:
        """Return the least reads and writes per message; unless it is known, every call moves as much as possible."""
        came, went = message_bytes(self.body_bytes)
        least = (came / CALL_BYTES / self.copies, went / CALL_BYTES)
        return None if self.over_tls else self.calls or least

    def measure(self, broker: Broker, limits: Limits) -> Figures:
        """Run the scenario once; TLS once over each port. Raises: RunFailed, Fault, OSError; NotOffered without TLS."""
        if broker.relay:
            return self._relayed(limits)
        if not self.over_tls:
            return self._run(broker, limits)
        if not broker.tls:
            raise NotOffered
        plain, over_tls = (self._run(one, limits) for one in (broker, replace(broker, address=broker.tls)))
        return over_tls | {f"plain_{name}": plain[name] for name in ("cpu_us", "per_s") if name in plain}

    def _relayed(self, limits: Limits) -> Figures:
        if self.words[0] == "pingpong":
            with relay("bench.messages.relays", "pair") as pairs:
                return self._run(pairs, limits)
        per_s, seconds = limits.rate if self.paced else None, getattr(limits, self.seconds)
        return relayed(self.body_bytes, self.consumers, seconds, per_s=per_s, window=self.relay_window)

    def _run(self, broker: Broker, limits: Limits) -> Figures:
        """Return the figures of one run.

        Units: latencies are from when a message was due, at full speed from when it was sent, without consumers until
        its confirm; `queued` counts the messages in the queues when the publisher ended; `fdatasync_us` is one append
        and sync on the broker's disk, and `beyond_us` what a confirm takes beyond it, both medians.
        """
        seconds = getattr(limits, self.seconds)
        scenario, *flags = (word.format(**asdict(limits)) for word in self.words)
        synced_us = fdatasync_us(broker.folder or Path(gettempdir())) if self.persistent else 0.0
        result, used = perf(broker, scenario, *flags, "-z", f"{seconds}s", limit_s=seconds + limits.stall_s)
        totals, times = result.totals, result.latency_us or result.confirm_latency_us
        figures = used | {
            "messages": totals.delivered or totals.published,
            "seconds": result.seconds,
            "per_s": totals.deliver_per_s or totals.confirm_per_s,
        }
        if self.paced:
            del figures["per_s"]
        if times:
            figures |= {"p50_us": times.p50, "p99_us": times.p99}
        if self.persistent and times:
            figures |= {"fdatasync_us": synced_us, "beyond_us": times.p50 - synced_us}
        if self.stage == "full":
            queued = result.figures.get("queued_at_end")
            figures |= {
                "published_per_s": totals.publish_per_s * self.copies,
                "queued": queued.value if queued else 0,
            }
            if used:
                figures["cpu_us"] = used["cpu_s"] / max(1, totals.delivered) * 1e6
        return figures


def fanout(size: int) -> PerfLoad:
    """Return S4: a publisher with confirms, which bound its lead, and consumers without acks; per delivery."""
    title = f"fan-out into {FANOUT} queues, transient, auto-ack, {size_text(size)}, per delivery"
    words = ("fanout", "-y", str(FANOUT), "-s", str(size), "-c", "{window}", "-a", "--keys", "{keys}")
    return PerfLoad(f"S4-{size}", title, words, size, "fanout_seconds", FANOUT, consumers=FANOUT)


def latency(size: int) -> PerfLoad:
    """Return S6: a steady rate on a fixed schedule, and the time of each message from when it was due."""
    title = f"latency at 1,000 messages/s, transient, auto-ack, {size_text(size)}"
    words = ("latency", "-s", str(size), "-r", "{rate}", "-a", "-e", "bench-latency", "-k", "bench.latency")
    words = (*words, "--keys", "{keys}")
    return PerfLoad(f"S6-{size}", title, words, size, "latency_seconds", calls=(1.0, 1.0), paced=True)


def pingpong() -> PerfLoad:
    """Return S9: pairs of clients that each wait for every single message, which rules out batching."""
    title = f"{_PAIRS} pairs, one unconfirmed message each way at a time, per message"
    return PerfLoad("S9", title, ("pingpong", "-x", str(_PAIRS)), 16, calls=(1.0, 1.0))


def lone_confirm() -> PerfLoad:
    """Return S10: one publisher of persistent messages that waits for the confirm of each."""
    title = "persistent, durable, 16 B, one at a time: publish until confirm"
    words = ("throughput", "-y", "0", "-s", "16", "-c", "1", "--persistent")
    return PerfLoad("S10", title, words, 16, calls=(1.0, 2.0), persistent=True, relay_window=1, consumers=0)


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
    """Return the same load over both ports of a broker, one after the other."""
    said, words = {
        "S2": ("transient, confirms, manual ack", ("throughput", *_WINDOW)),
        "S9": (f"{_PAIRS} pairs, one unconfirmed message each way at a time", ("pingpong", "-x", str(_PAIRS))),
    }[kind]
    title = f"TLS beside plain: {said}, {size_text(size)}"
    words = (*words, "-s", str(size))
    return PerfLoad(f"{kind}-{size}-tls", title, words, size, rounds=2, relayed=False, over_tls=True)
