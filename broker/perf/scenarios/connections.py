"""Opens many connections, holds them idle and closes them: the time of each, and the broker's cost of each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Final

from broker.perf.account import Account, Stopwatch, grown, spent_us, times_us
from broker.perf.conversation import Conversation, Script, Switchboard, closing, opening
from broker.perf.descriptors import make_room
from broker.perf.faults import Fault, Refusal
from broker.perf.flags import add_scenario
from broker.perf.histogram import Histogram
from broker.perf.interruption import Interruption
from broker.perf.progress import RunProgress
from broker.perf.quantities import count, count_or_none, duration, rate
from broker.perf.result import Figure, Result

_TURN_S: Final = 0.2
_MOST_CHANNELS: Final = 65_535


def add_connections(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "connections", "open and hold many connections: time and memory each")
    load = parser.add_argument_group("connections")
    load.add_argument(
        "-n", "--connections", metavar="N", type=count, default=1000, help="number of connections, default 1000"
    )
    load.add_argument(
        "-X", "--channels", metavar="N", type=_channels, default=1, help="channels per connection, default 1"
    )
    load.add_argument("-w", "--at-once", metavar="N", type=count, default=1, help="simultaneous handshakes, default 1")
    load.add_argument("-r", "--rate", metavar="R", type=rate, help="open at most R per second")
    load.add_argument("-z", "--hold", metavar="T", type=duration, default=2.0, help="hold them for T, default 2s")
    load.add_argument("--heartbeat", metavar="T", type=_heartbeat, default=60, help="heartbeat, default 60s; 0: none")


def run_connections(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Open, hold and close the connections.

    Raises: Fault, OSError if no connection could be opened.
    """
    make_room(options.connections + 1)
    account = Account(options)
    with Interruption() as interruption:
        return Gathering(options, account, progress, interruption).run()


class Gathering:
    """The connections of a run.

    Invariant: every opened connection is closed, also after Ctrl-C, and the result says how many there were.
    """

    def __init__(
        self, options: argparse.Namespace, account: Account, progress: RunProgress, interruption: Interruption
    ) -> None:
        self._options = options
        self._account = account
        self._progress = progress
        self._interruption = interruption
        self._board = Switchboard(options.heartbeat)
        self._opens, self._closes = Histogram(), Histogram()
        self._fault: Fault | None = None  # the first
        self._lost: set[Conversation] = set()

    def run(self) -> Result:
        """Return the result.

        Raises: Fault, OSError if no connection could be opened.
        """
        before = self._account.usage()
        try:
            watch = Stopwatch()
            self._open_all()
            open_s, busy_share = watch.seconds(), watch.busy_share()
            opened, after_open = self._opens.count, self._account.usage()
            if not opened and self._fault is not None:
                raise self._fault
            self._hold()
            held, after_hold = len(self._board.open), self._account.usage()
            watch = Stopwatch()
            self._close_all()
            close_s = watch.seconds()
        finally:
            self._board.close()
        figures = {
            "opens": Figure(opened / open_s, "per_s"),
            **times_us("open", self._opens),
            "open_mean": Figure(self._opens.mean_ns / 1e3, "us"),
            "memory_per_connection": grown(before, after_hold, held),
            "broker_cpu_per_open": spent_us(before, after_open, opened),
            "closes": Figure(self._closes.count / close_s, "per_s"),
            **times_us("close", self._closes),
            "opened": Figure(opened, "connections"),
            "held": Figure(held, "connections"),
        }
        return self._account.result(figures, self._failures(opened), busy_share)

    def _open_all(self) -> None:
        options, address = self._options, self._account.address

        def begin(_: int) -> Conversation:
            begun_ns = time.monotonic_ns()
            script = opening(address, options.heartbeat, options.channels)
            return self._board.dial(address, _timed(script, self._opens, begun_ns))

        self._each("opening", options.connections, begin, per_s=options.rate)

    def _hold(self) -> None:
        now_s = time.monotonic()
        until_s, tell_s = now_s + self._options.hold, now_s + self._options.interval
        while (now_s := time.monotonic()) < until_s and not self._interruption.asked and self._board.open:
            self._note(self._board.turn(min(_TURN_S, until_s - now_s)))
            if now_s >= tell_s:
                tell_s += self._options.interval
                self._progress.show(f"holding {len(self._board.open):,} connections  {until_s - now_s:.0f} s to go")

    def _close_all(self) -> None:
        talks = list(self._board.open)

        def begin(number: int) -> Conversation:
            talk = talks[number]
            if talk.fault is None:
                self._board.follow(talk, _timed(closing(), self._closes, time.monotonic_ns()))
            return talk

        self._each("closing", len(talks), begin, last=True)

    def _each(
        self,
        stage: str,
        total: int,
        begin: Callable[[int], Conversation],
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
            wait_s, more = _TURN_S, last or (self._fault is None and not self._interruption.asked)
            while more and begun < total and len(under_way) < self._options.at_once:
                early_s = began_s + begun / per_s - time.monotonic() if per_s else 0.0
                if early_s > 0:
                    wait_s = min(wait_s, early_s)
                    break
                talk = self._begin(begin, begun)
                if talk is None:
                    break
                begun += 1
                under_way.add(talk)
            if not under_way and (begun == total or self._fault is not None or self._interruption.asked):
                return
            self._note(self._board.turn(wait_s))
            under_way = {talk for talk in under_way if talk.busy}
            self._progress.share(stage, begun - len(under_way), total)

    def _begin(self, begin: Callable[[int], Conversation], number: int) -> Conversation | None:
        try:
            talk = begin(number)
        except OSError as error:
            if not self._board.open:
                raise
            self._fault = self._fault or Refusal(f"no more connections: {error.strerror or error}")
            return None
        self._note([talk])
        return talk

    def _note(self, moved: list[Conversation]) -> None:
        for talk in moved:
            if talk.fault is not None:
                self._fault = self._fault or talk.fault
                self._lost.add(talk)

    def _failures(self, opened: int) -> list[str]:
        wanted = self._options.connections
        if self._fault is None:
            return [f"stopped by Ctrl-C after {opened:,} of {wanted:,} connections"] if opened < wanted else []
        return [f"{opened:,} of {wanted:,} connections opened, {len(self._lost):,} refused or lost: {self._fault}"]


def _timed(script: Script, histogram: Histogram, begun_ns: int) -> Script:
    """Run a script and record how long it took; a failed script is not recorded."""
    yield from script
    histogram.record(time.monotonic_ns() - begun_ns)


def _channels(text: str) -> int:
    value = count_or_none(text)
    if value > _MOST_CHANNELS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_MOST_CHANNELS}, the most that AMQP can number")
    return value


def _heartbeat(text: str) -> int:
    value = duration(text)
    if value != int(value) or value > _MOST_CHANNELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole seconds up to 65535")
    return int(value)
