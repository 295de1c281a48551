"""Conducts a run: starts the generator's processes together, follows them, and ends them in order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from broker.perf.crew import Crew, RunFailed, Task
from broker.perf.driver import DRAIN, STOP, TICK
from broker.perf.histogram import Histogram
from broker.perf.interruption import Interruption, uninterrupted
from broker.perf.load import Load
from broker.perf.outcome import Outcome
from broker.perf.parts import CONNECTED, DONE, LEAVE, LEFT, consume_part, publish_part
from broker.perf.process_tree import ProcessTree
from broker.perf.progress import Progress
from broker.perf.result import Interval, LatencyPair
from broker.perf.tally import Tally

STALL_S: Final = 10.0  # without a single message, while some are due: the run is over

_CONNECT_LIMIT_S: Final = 120.0
_END_LIMIT_S: Final = 20.0
_STEP_S: Final = 0.02
_TICK_GRACE_S: Final = 0.5  # for the ticks of an interval to arrive, on a machine that has better things to do
_AFTERGLOW_S: Final = 0.1  # work that a broker puts off until it is idle belongs to the run
_UNKNOWN_QUIET_S: Final = 1.0  # nobody knows how much is to come
_TIMED_QUIET_S: Final = 0.5  # time was over
_TIMED_SHARE: Final = 0.05  # behind more than that of all, consumers are not waited for when time is over


@dataclass(slots=True)
class _Ledger:
    """What the processes have told so far."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    told_ns: dict[str, int] = field(default_factory=dict)  # of when each told last
    within: Histogram = field(default_factory=Histogram)  # due times of the interval

    @property
    def sum(self) -> Tally:
        return sum(self.tallies.values(), Tally())

    def told_since(self, at_s: float, roles: frozenset[str]) -> bool:
        """Whether all of these have told something of this time or later, or are done."""
        return all(role in self.done or self.told_ns.get(role, 0) >= at_s * 1e9 for role in roles)


class Conductor:
    """One run of a load."""

    def __init__(
        self,
        load: Load,
        progress: Progress,
        interruption: Interruption,
        processes: ProcessTree | None = None,
        publishers: Mapping[str, Task] | None = None,
    ) -> None:
        """Prepare a run; `publishers` are processes that take the place of the load's own."""
        self._load = load
        self._tasks = publishers
        self._progress = progress
        self._interruption = interruption
        self._processes = processes
        self._ledger = _Ledger()
        self._outcome = Outcome()
        self._begin_s = 0.0
        self._shown = Tally()
        self._shown_s = 0.0
        self._moved_s = 0.0
        self._drain_s: float | None = None
        self._stopping = False
        self._timed = False
        self._publishers: frozenset[str] = frozenset()
        self._consumers: frozenset[str] = frozenset()

    def run(self) -> Outcome:
        """Run it and return what it came to; what went wrong after the beginning stands in its `failures`.

        Raises: RunFailed when the processes cannot connect; KeyboardInterrupt at the second Ctrl-C.
        """
        load = self._load
        publishers: Mapping[str, Task] = self._tasks or {
            f"publisher {number}": partial(publish_part, share) for number, share in enumerate(load.publish_shares())
        }
        consumers = {
            f"consumer {number}": partial(consume_part, share) for number, share in enumerate(load.consume_shares())
        }
        self._publishers, self._consumers = frozenset(publishers), frozenset(consumers)
        with uninterrupted():
            crew = Crew({**consumers, **publishers}, int(load.interval_s * 1e9))
        with crew:
            crew.gather(CONNECTED, _CONNECT_LIMIT_S)
            if self._processes:
                self._processes.reset_peak()
                self._outcome.before = self._processes.usage()
            begin_ns = time.monotonic_ns()
            stop_ns = begin_ns + int(load.seconds * 1e9) if load.seconds else 0
            crew.tell((begin_ns, stop_ns), self._publishers)
            crew.tell((begin_ns, 0), self._consumers)
            self._begin_s = begin_ns / 1e9
            self._follow(crew)
            if self._processes and self._processes.pids():
                time.sleep(_AFTERGLOW_S)
                self._outcome.after = self._processes.usage()
            self._dismiss(crew)
        return self._outcome

    def _follow(self, crew: Crew) -> None:
        """Return when every process is done."""
        ledger, end_at_s = self._ledger, 0.0
        while ledger.done.keys() != crew.roles:
            try:
                self._take(crew.reports(_STEP_S))
            except RunFailed as error:
                self._fail(str(error))
                break
            at_s = time.monotonic() - self._begin_s
            self._show_intervals(at_s)
            if self._interruption.asked:
                self._outcome.interrupted = True
            if self._stopping:
                if at_s > end_at_s:
                    self._fail("a process of the generator did not end")
                    break
            elif self._over(crew, at_s):
                self._stopping, end_at_s = True, at_s + _END_LIMIT_S
                crew.tell(STOP)
        self._conclude()

    def _over(self, crew: Crew, at_s: float) -> bool:
        """Whether everybody is to stop now."""
        ledger, load = self._ledger, self._load
        if any(figures["fault"] for figures in ledger.done.values()):
            return True
        if self._consumers and self._consumers <= ledger.done.keys():
            return True
        if self._outcome.interrupted and not self._timed:
            self._timed = True
            crew.tell(STOP, self._publishers)
        if load.seconds and at_s >= load.seconds:
            self._timed = True
        if self._publishers <= ledger.done.keys():
            return self._drained(crew, at_s)
        return self._stalled(at_s)

    def _drained(self, crew: Crew, at_s: float) -> bool:
        """Whether the consumers have what they can get; the publishers are done."""
        load, ledger = self._load, self._ledger
        if not self._consumers:
            return True
        if not self._publishers and load.deliveries is None:
            return self._timed  # nobody knows what others publish
        if self._drain_s is None:
            self._drain_s = self._moved_s = at_s
            crew.tell(DRAIN, self._consumers)
        if not ledger.told_since(self._begin_s + self._drain_s, self._consumers):
            return False
        total, expected = ledger.sum, self._expected()
        if expected is not None and total.delivered >= expected:
            return True
        quiet_s = at_s - max(self._moved_s, self._drain_s)
        if self._timed:
            behind = 0 if expected is None else expected - total.delivered
            return behind > max(1000, _TIMED_SHARE * total.delivered) or quiet_s > _TIMED_QUIET_S
        if expected is None:
            return quiet_s > _UNKNOWN_QUIET_S
        if quiet_s <= self._patience_s():
            return False
        self._fail(f"{expected - total.delivered:,} of {expected:,} messages were not delivered")
        return True

    def _stalled(self, at_s: float) -> bool:
        """Whether publishers have got nowhere for too long."""
        if at_s - self._moved_s <= self._patience_s():
            return False
        blocked = self._ledger.sum.blocked
        if not blocked:
            self._fail(f"nothing was published or confirmed for {self._patience_s():.0f} s")
        return True

    def _patience_s(self) -> float:
        slowest = min(self._load.per_s or 1.0, self._load.demand.per_s or 1.0)
        return max(STALL_S, 3 / slowest)

    def _expected(self) -> int | None:
        """Return how many deliveries there will be, None where nobody knows."""
        load, total = self._load, self._ledger.sum
        if load.deliveries is not None:
            return load.deliveries
        if load.copies is None:
            return None
        return load.ready + (total.published - total.nacked - total.returned) * load.copies

    def _take(self, reports: list[tuple[str, str, dict[str, Any]]]) -> None:
        ledger, outcome = self._ledger, self._outcome
        for role, word, figures in reports:
            if word not in (TICK, DONE):
                continue
            if figures["tally"] != ledger.tallies.get(role):
                self._moved_s = time.monotonic() - self._begin_s
            ledger.tallies[role] = figures["tally"]
            if "due_times" in figures:
                times = Histogram.from_list(figures["due_times"])
                outcome.due_times.merge(times)
                ledger.within.merge(times)
                outcome.sent_times.merge(Histogram.from_list(figures["sent_times"]))
                outcome.late_times.merge(Histogram.from_list(figures["late_times"]))
            else:
                outcome.confirm_times.merge(Histogram.from_list(figures["confirm_times"]))
            ledger.told_ns[role] = figures["at_ns"]
            if word == DONE:
                ledger.done[role] = figures

    def _show_intervals(self, at_s: float) -> None:
        interval_s, everyone = self._load.interval_s, self._publishers | self._consumers
        while at_s >= (end_s := self._shown_s + interval_s):
            if at_s < end_s + _TICK_GRACE_S and not self._ledger.told_since(self._begin_s + end_s, everyone):
                return
            self._show(end_s)

    def _show(self, at_s: float) -> None:
        """Add the interval that ends here."""
        ledger = self._ledger
        total, seconds = ledger.sum, at_s - self._shown_s
        since = total - self._shown
        latency = LatencyPair.of(ledger.within)
        interval = Interval(at_s, since.published, since.confirmed, since.delivered, latency)
        self._outcome.intervals.append(interval)
        self._progress.interval(interval, seconds)
        ledger.within.clear()
        self._shown, self._shown_s = total, at_s

    def _conclude(self) -> None:
        """Put together what the processes told."""
        ledger, outcome = self._ledger, self._outcome
        outcome.tally = ledger.sum
        now_s = time.monotonic() - self._begin_s
        outcome.publish_s = self._ended_s(self._publishers, now_s)
        outcome.deliver_s = self._ended_s(self._consumers, now_s)
        outcome.seconds = max(outcome.publish_s, outcome.deliver_s) or now_s
        expected = self._expected()
        if self._timed and self._publishers and self._consumers and expected is not None:
            outcome.left_behind = max(0, expected - outcome.tally.delivered)
        for figures in ledger.done.values():
            outcome.cpu_s += figures["cpu_s"]
            outcome.busy_share = max(outcome.busy_share, figures["busy_share"])
        for fault in dict.fromkeys(figures["fault"] for figures in ledger.done.values() if figures["fault"]):
            self._fail(fault)
        blocked = next((text for figures in ledger.done.values() if (text := figures.get("blocked_for"))), "")
        if blocked:
            self._fail(f"the broker takes no messages (connection.blocked): {blocked}")
        if outcome.seconds - self._shown_s > self._load.interval_s / 100 and outcome.tally != self._shown:
            self._show(outcome.seconds)

    def _ended_s(self, roles: frozenset[str], now_s: float) -> float:
        """Return when the last of these processes was done with its last message."""
        if not roles:
            return 0.0
        if not roles <= self._ledger.done.keys():
            return now_s
        ended_ns: int = max(self._ledger.done[role]["ended_ns"] for role in roles)
        return max(0.0, ended_ns / 1e9 - self._begin_s)

    def _dismiss(self, crew: Crew) -> None:
        crew.tell(LEAVE)
        try:
            crew.gather(LEFT, _END_LIMIT_S)
        except RunFailed:
            return  # one that ended already has nothing more to tell

    def _fail(self, text: str) -> None:
        self._outcome.failures.append(text)
