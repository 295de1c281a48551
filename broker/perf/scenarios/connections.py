"""Opens many connections, holds them idle and closes them: the time of each, and the broker's cost of each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.perf.conversation import Conversation
from broker.perf.crew import Interruption
from broker.perf.flags import add, add_scenario
from broker.perf.histogram import Histogram
from broker.perf.outcome import cost_figures, time_figures
from broker.perf.peer import Script, closing, opening
from broker.perf.progress import RunProgress
from broker.perf.quantities import at_most, count, count_or_none, duration, rate
from broker.perf.result import Figure, Result
from broker.perf.scripted import TURN_S, ScriptedRun, Stopwatch

_MOST_CHANNELS: Final = 65_535


def add_connections(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "connections", "open and hold many connections: time and memory each")
    load = parser.add_argument_group("connections")
    add(load, "-n --connections", "N", count, "number of connections, default 1000", 1000)
    channels = at_most(count_or_none, _MOST_CHANNELS, "AMQP can number")
    add(load, "-X --channels", "N", channels, "channels per connection, default 1", 1)
    add(load, "-w --at-once", "N", count, "simultaneous handshakes, default 1", 1)
    add(load, "-r --rate", "R", rate, "open at most R per second")
    add(load, "-z --hold", "T", duration, "hold them for T, default 2s", 2.0)
    add(load, "--heartbeat", "T", _heartbeat, "heartbeat, default 60s; 0: none", 60)


def run_connections(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Open, hold and close the connections.

    Raises: Fault, OSError if no connection could be opened.
    """
    with Interruption() as interruption:
        return Gathering(options, progress, interruption, options.connections, options.heartbeat).run()


class Gathering(ScriptedRun):
    """The connections of a run.

    Invariant: every opened connection is closed, also after Ctrl-C, and the result says how many there were.
    """

    def run(self) -> Result:
        """Return the result.

        Raises: Fault, OSError if no connection could be opened.
        """
        opens, closes = Histogram(), Histogram()
        self._lost: set[Conversation] = set()
        before = self.usage()
        try:
            watch = Stopwatch()
            self._open_all(opens)
            open_s, busy_share = watch.seconds(), watch.busy_share()
            opened, after_open = opens.count, self.usage()
            if not opened and self.fault is not None:
                raise self.fault
            self._hold()
            held, after_hold = len(self.board.open), self.usage()
            watch = Stopwatch()
            self._close_all(closes)
            close_s = watch.seconds()
        finally:
            self.board.close()
        figures = {
            "opens": Figure(opened / open_s, "per_s"),
            **time_figures("open", opens),
            "open_mean": Figure(opens.mean_ns / 1e3, "us"),
            **cost_figures(before, after_hold, held, memory="memory_per_connection"),
            **cost_figures(before, after_open, opened, cpu="broker_cpu_per_open"),
            "closes": Figure(closes.count / close_s, "per_s"),
            **time_figures("close", closes),
            "opened": Figure(opened, "connections"),
            "held": Figure(held, "connections"),
        }
        return self.result(figures, self._failures(opened), busy_share)

    def note(self, talks: Iterable[Conversation]) -> None:
        """Note the first fault of these conversations, and which are lost."""
        lost = [talk for talk in talks if talk.fault is not None]
        self._lost.update(lost)
        super().note(lost)

    def _open_all(self, times: Histogram) -> None:
        options = self.options

        def begin(_: int) -> Conversation | None:
            script = opening(self.address, options.heartbeat, range(1, options.channels + 1))
            return self.dial(_timed(script, times, time.monotonic_ns()))

        self._each("opening", options.connections, begin, per_s=options.rate)

    def _hold(self) -> None:
        now_s = time.monotonic()
        until_s, tell_s = now_s + self.options.hold, now_s + self.options.interval
        while (now_s := time.monotonic()) < until_s and not self.interruption.asked and self.board.open:
            self.note(self.board.turn(min(TURN_S, until_s - now_s)))
            if now_s >= tell_s:
                tell_s += self.options.interval
                self.progress.show(f"holding {len(self.board.open):,} connections  {until_s - now_s:.0f} s to go")

    def _close_all(self, times: Histogram) -> None:
        talks = list(self.board.open)

        def begin(number: int) -> Conversation:
            talk = talks[number]
            if talk.fault is None:
                self.board.follow(talk, _timed(closing(), times, time.monotonic_ns()))
            return talk

        self._each("closing", len(talks), begin, last=True)

    def _each(
        self,
        stage: str,
        total: int,
        begin: Callable[[int], Conversation | None],
        *,
        per_s: float | None = None,
        last: bool = False,
    ) -> None:
        """Run `total` scripts, a limited number at a time, and return when the last has ended.

        A fault or Ctrl-C stops the start of further scripts, unless they are the `last`.
        """
        began_s, begun = time.monotonic(), 0
        under_way: set[Conversation] = set()
        while True:
            wait_s, more = TURN_S, last or (self.fault is None and not self.interruption.asked)
            while more and begun < total and len(under_way) < self.options.at_once:
                early_s = began_s + begun / per_s - time.monotonic() if per_s else 0.0
                if early_s > 0:
                    wait_s = min(wait_s, early_s)
                    break
                talk = begin(begun)
                if talk is None:
                    break
                self.note([talk])
                begun += 1
                under_way.add(talk)
            if not under_way and (begun == total or self.fault is not None or self.interruption.asked):
                return
            self.note(self.board.turn(wait_s))
            under_way = {talk for talk in under_way if talk.busy}
            self.progress.share(stage, begun - len(under_way), total)

    def _failures(self, opened: int) -> list[str]:
        wanted = self.options.connections
        if self.fault is None:
            return [f"stopped by Ctrl-C after {opened:,} of {wanted:,} connections"] if opened < wanted else []
        return [f"{opened:,} of {wanted:,} connections opened, {len(self._lost):,} refused or lost: {self.fault}"]


def _timed(script: Script, times: Histogram, begun_ns: int) -> Script:
    """Run a script and record how long it took; a failed script is not recorded."""
    yield from script
    times.record(time.monotonic_ns() - begun_ns)


def _heartbeat(text: str) -> int:
    value = duration(text)
    if value != int(value) or value > _MOST_CHANNELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole seconds up to 65535")
    return int(value)
