"""Opens many connections, holds them idle and closes them: the time of each, and the broker's cost of each."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

from broker.perf.conversation import TURN_S, Conversation, ScriptedRun
from broker.perf.crew import Interruption
from broker.perf.flags import add, add_scenario, at_most, count_or_none, duration, rate
from broker.perf.flags import count as whole
from broker.perf.histogram import Histogram
from broker.perf.machine import Stopwatch
from broker.perf.outcome import cost_figures, time_figures
from broker.perf.peer import closing, opening
from broker.perf.progress import RunProgress
from broker.perf.result import Figure, Result

_MOST_CHANNELS: Final = 65_535


def add_connections(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "connections")
    load = parser.add_argument_group("connections")
    add(load, "-n --connections", "N", whole, "number of connections, default 1000", 1000)
    channels = at_most(count_or_none, _MOST_CHANNELS, "AMQP can number")
    add(load, "-X --channels", "N", channels, "channels per connection, default 1", 1)
    add(load, "-w --at-once", "N", whole, "simultaneous handshakes, default 1", 1)
    add(load, "-r --rate", "R", rate, "open at most R per second")
    add(load, "-z --hold", "T", duration, "hold them for T, default 2s", 2.0)
    add(load, "--heartbeat", "T", _heartbeat, "heartbeat, default 60s; 0: none", 60)


def run_connections(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Open, hold and close the connections. Raises: Fault, OSError if no connection could be opened."""
    with Interruption() as interruption:
        return asyncio.run(Gathering(options, progress, interruption, options.connections, options.heartbeat).run())


class Gathering(ScriptedRun):
    """The connections of a run.

    Invariant: every opened connection is closed, also after Ctrl-C, and the result says how many there were.
    """

    async def run(self) -> Result:
        """Return the result. Raises: Fault if no connection could be opened."""
        options = self.options
        opens, closes = Histogram(), Histogram()
        before, watch = self.usage(), Stopwatch()
        await self._each("opening", options.connections, lambda: self._open(opens), per_s=options.rate)
        open_s, busy_share = watch.seconds(), watch.busy_share()
        opened, after_open = opens.count, self.usage()
        if not opened and self.fault is not None:
            raise self.fault
        await self._hold()
        held, after_hold = len(self.open), self.usage()
        watch, talks = Stopwatch(), list(self.open)
        await self._each("closing", held, lambda: self._close(talks.pop(), closes), last=True)
        figures = {
            "opens": Figure(opened / open_s, "per_s"),
            **time_figures("open", opens),
            "open_mean": Figure(opens.mean_ns / 1e3, "us"),
            **cost_figures(before, after_hold, held, memory="memory_per_connection"),
            **cost_figures(before, after_open, opened, cpu="broker_cpu_per_open"),
            "closes": Figure(closes.count / watch.seconds(), "per_s"),
            **time_figures("close", closes),
            "opened": Figure(opened, "connections"),
            "held": Figure(held, "connections"),
        }
        return self.result(figures, self._failures(opened), busy_share)

    async def _open(self, times: Histogram) -> None:
        begun_ns = time.monotonic_ns()
        if await self.dial(opening(self.address, self.options.heartbeat, range(1, self.options.channels + 1))):
            times.record(time.monotonic_ns() - begun_ns)

    async def _close(self, talk: Conversation, times: Histogram) -> None:
        begun_ns = time.monotonic_ns()
        if await self.follow(talk, closing()):
            times.record(time.monotonic_ns() - begun_ns)

    async def _hold(self) -> None:
        now_s = time.monotonic()
        until_s, tell_s = now_s + self.options.hold, now_s + self.options.interval
        while (now_s := time.monotonic()) < until_s and not self.interruption.asked and self.open:
            await asyncio.sleep(min(TURN_S, until_s - now_s))
            if now_s >= tell_s:
                tell_s += self.options.interval
                self.progress.show(f"holding {len(self.open):,} connections  {until_s - now_s:.0f} s to go")

    async def _each(
        self,
        stage: str,
        total: int,
        work: Callable[[], Awaitable[None]],
        *,
        per_s: float | None = None,
        last: bool = False,
    ) -> None:
        """Do some work `total` times, a limited number at a time.

        A fault or Ctrl-C stops further work, unless it is the `last`.
        """
        began_s, numbers, ends = time.monotonic(), iter(range(total)), count(1)

        async def worker() -> None:
            for number in numbers:
                due_s = began_s + number / per_s if per_s else 0.0
                while (early_s := due_s - time.monotonic()) > 0 and not self.stopping:  # noqa: ASYNC110  Ctrl-C is a flag
                    await asyncio.sleep(min(TURN_S, early_s))
                if self.stopping and not last:
                    return
                await work()
                self.progress.share(stage, next(ends), total)

        await asyncio.gather(*(worker() for _ in range(min(total, self.options.at_once))))

    def _failures(self, opened: int) -> list[str]:
        wanted = self.options.connections
        if self.fault is None:
            return [f"stopped by Ctrl-C after {opened:,} of {wanted:,} connections"] if opened < wanted else []
        return [f"{opened:,} of {wanted:,} connections opened, {self.lost:,} refused or lost: {self.fault}"]


def _heartbeat(text: str) -> int:
    value = duration(text)
    if value != int(value) or value > _MOST_CHANNELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole seconds up to 65535")
    return int(value)
