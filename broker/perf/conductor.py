"""Conducts a run: makes its topology, starts the processes together, sums up their reports, and cleans up."""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from broker.perf.crew import (
    CONNECTED,
    DONE,
    DRAIN,
    END_LIMIT_S,
    LEAVE,
    LEFT,
    STOP,
    TICK,
    Crew,
    Crowd,
    Interruption,
    Task,
    run_crowd,
    uninterrupted,
)
from broker.perf.faults import BadOptions, Refusal, RunFailed
from broker.perf.histogram import Histogram
from broker.perf.machine import ProcessTree, TreeUsage
from broker.perf.outcome import RunOutcome, RunTally
from broker.perf.parts import Consumers, Load, Publishers
from broker.perf.peer import Address, PeerConnection
from broker.perf.progress import RunProgress, interval_line
from broker.perf.receiver import ReceiverPace
from broker.perf.result import Figure, Interval, LatencyPair, Result
from broker.perf.topology import RunTopology
from broker.perf.wire import PUBLISH_CHANNEL

T = TypeVar("T")

STALL_S: Final = 10.0  # the run ends after this time without a message while messages are due

_CONNECT_LIMIT_S: Final = 120.0
_END_LIMIT_S: Final = 20.0
_STEP_S: Final = 0.02
_AFTERGLOW_S: Final = 0.1  # a broker may defer work until it is idle; that work belongs to the run
_UNKNOWN_QUIET_S: Final = 1.0  # for an unknown number of deliveries
_TIMED_QUIET_S: Final = 0.5  # after the time limit
_TIMED_SHARE: Final = 0.05  # after the time limit, a larger undelivered share is not waited for

_TICK_GRACE_S: Final = 0.5  # for the ticks of an interval to arrive on a busy machine
_LEAST_INTERVAL_S: Final = 0.001
_TIMES: Final = frozenset(("due_times", "sent_times", "late_times", "confirm_times"))
_CEILING_S: Final = 1.0
_REMOVE_LIMIT_S: Final = 10.0  # deleting a queue of millions of messages takes a while


def tasks(role: str, crowd_of: Callable[[T], Crowd], shares: Sequence[T]) -> dict[str, Task]:
    """Return the processes of a role, one for each share."""
    return {f"{role} {number}": partial(run_crowd, crowd_of, share) for number, share in enumerate(shares)}


class Conductor:
    """One run of a load."""

    def __init__(
        self,
        load: Load,
        progress: RunProgress,
        interruption: Interruption,
        processes: ProcessTree | None = None,
        publishers: Mapping[str, Task] | None = None,
        ready: Callable[[], int] | None = None,
        consumers: Mapping[str, Task] | None = None,
    ) -> None:
        """Prepare a run.

        Shapes: `publishers` and `consumers` are processes that replace the load's own; `ready` asks the broker how many
        messages its queues hold.
        """
        self._load = load
        self._tasks = publishers, consumers
        self._interruption = interruption
        self._processes = processes
        self._ready = ready
        self._outcome = RunOutcome()
        self._ledger = Ledger(self._outcome, progress, load.interval_s)
        self._begin_s = 0.0
        self._drain_s: float | None = None
        self._stopping = False
        self._timed = False
        self._publishers: frozenset[str] = frozenset()
        self._consumers: frozenset[str] = frozenset()

    def run(self) -> RunOutcome:
        """Run the load and return its outcome; errors after the start are in its `failures`.

        Raises: RunFailed when the processes cannot connect; Refusal and OSError of `ready`; KeyboardInterrupt at the
        second Ctrl-C.
        """
        load = self._load
        publishers = self._tasks[0] or tasks("publisher", Publishers, load.publish_shares())
        consumers = self._tasks[1] or tasks("consumer", Consumers, load.consume_shares())
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
            self._begin_s = self._ledger.begin_s = begin_ns / 1e9
            self._follow(crew)
            if self._processes and self._processes.pids():
                time.sleep(_AFTERGLOW_S)
                self._outcome.after = self._processes.usage()
            self._dismiss(crew)
        return self._outcome

    def _follow(self, crew: Crew) -> None:
        """Follow the processes until every process is done."""
        ledger, end_at_s = self._ledger, 0.0
        while ledger.done.keys() != crew.roles:
            try:
                ledger.take(crew.reports(_STEP_S))
            except RunFailed as error:
                self._outcome.failures.append(str(error))
                break
            at_s = time.monotonic() - self._begin_s
            ledger.show_intervals(at_s, self._publishers | self._consumers)
            if self._interruption.asked:
                self._outcome.interrupted = True
            if self._stopping:
                if at_s > end_at_s:
                    self._outcome.failures.append("a process of the generator did not end")
                    break
            elif self._over(crew, at_s):
                self._stopping, end_at_s = True, at_s + _END_LIMIT_S
                crew.tell(STOP)
        self._conclude()

    def _over(self, crew: Crew, at_s: float) -> bool:
        """Return whether all processes must stop now."""
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
        """Return whether the consumers have received all they can get; the publishers are done."""
        load, ledger = self._load, self._ledger
        if not self._consumers:
            return True
        if not self._publishers and load.deliveries is None:
            return self._timed  # the number of messages that other clients publish is unknown
        if self._drain_s is None:
            self._drain_s = ledger.moved_s = at_s
            crew.tell(DRAIN, self._consumers)
            if self._ready and self._publishers:
                self._outcome.queued_at_end = self._ready()
        if not ledger.told_since(self._drain_s, self._consumers):
            return False
        total, expected = ledger.sum, self._expected()
        if expected is not None and total.delivered >= expected:
            return True
        quiet_s = at_s - max(ledger.moved_s, self._drain_s)
        if self._timed:
            behind = 0 if expected is None else expected - total.delivered
            return behind > max(1000, _TIMED_SHARE * total.delivered) or quiet_s > _TIMED_QUIET_S
        if expected is None:
            return quiet_s > _UNKNOWN_QUIET_S
        if quiet_s <= self._patience_s():
            return False
        self._outcome.failures.append(f"{expected - total.delivered:,} of {expected:,} messages were not delivered")
        return True

    def _stalled(self, at_s: float) -> bool:
        """Return whether publishers have made no progress for too long."""
        if at_s - self._ledger.moved_s <= self._patience_s():
            return False
        blocked = self._ledger.sum.blocked
        if not blocked:
            self._outcome.failures.append(f"nothing was published or confirmed for {self._patience_s():.0f} s")
        return True

    def _patience_s(self) -> float:
        slowest = min(self._load.per_s or 1.0, self._load.demand.per_s or 1.0)
        return max(STALL_S, 3 / slowest)

    def _expected(self) -> int | None:
        """Return the expected number of deliveries, None if unknown."""
        load, total = self._load, self._ledger.sum
        if load.deliveries is not None:
            return load.deliveries
        if load.copies is None:
            return None
        return load.ready + (total.published - total.nacked - total.returned) * load.copies

    def _conclude(self) -> None:
        """Combine the figures that the processes reported."""
        ledger, outcome = self._ledger, self._outcome
        now_s = time.monotonic() - self._begin_s
        outcome.publish_s = ledger.ended_s(self._publishers, now_s)
        outcome.deliver_s = ledger.ended_s(self._consumers, now_s)
        outcome.seconds = max(outcome.publish_s, outcome.deliver_s) or now_s
        expected = self._expected()
        ledger.conclude()
        if self._timed and self._publishers and self._consumers and expected is not None:
            outcome.left_behind = max(0, expected - outcome.tally.delivered)

    def _dismiss(self, crew: Crew) -> None:
        crew.tell(LEAVE)
        try:
            crew.gather(LEFT, _END_LIMIT_S)
        except RunFailed:
            return  # an ended process has no more to report


class Ledger:
    """The tallies and times of a run, by role.

    Units: seconds since the beginning of the run, except `begin_s`, which is on the monotonic clock.
    Invariant: the intervals of the outcome add up to its tally.
    """

    def __init__(self, outcome: RunOutcome, progress: RunProgress, interval_s: float) -> None:
        self.begin_s = 0.0
        self.moved_s = 0.0  # the time of the last change of a count
        self.done: dict[str, dict[str, Any]] = {}  # the last figures of the roles that are done
        self._outcome = outcome
        self._progress = progress
        self._interval_s = interval_s
        self._tallies: dict[str, RunTally] = {}
        self._told_ns: dict[str, int] = {}
        self._within = Histogram()  # due times of the interval
        self._shown = RunTally()
        self._shown_s = 0.0

    @property
    def sum(self) -> RunTally:
        """The sum of all tallies."""
        return sum(self._tallies.values(), RunTally())

    def told_since(self, at_s: float, roles: frozenset[str]) -> bool:
        """Return whether each of these roles has reported at this time or later, or is done."""
        at_ns = (self.begin_s + at_s) * 1e9
        return all(role in self.done or self._told_ns.get(role, 0) >= at_ns for role in roles)

    def take(self, reports: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Enter reports."""
        outcome = self._outcome
        for role, word, figures in reports:
            if word not in (TICK, DONE):
                continue
            if figures["tally"] != self._tallies.get(role):
                self.moved_s = time.monotonic() - self.begin_s
            self._tallies[role] = figures["tally"]
            self._told_ns[role] = figures["at_ns"]
            for name in _TIMES & figures.keys():
                getattr(outcome, name).merge(figures[name])
            if "due_times" in figures:
                self._within.merge(figures["due_times"])
            if word == DONE:
                self.done[role] = figures

    def show_intervals(self, at_s: float, roles: frozenset[str]) -> None:
        """Show the intervals that are over and that all of these roles have reported."""
        while at_s >= (end_s := self._shown_s + self._interval_s):
            if at_s < end_s + _TICK_GRACE_S and not self.told_since(end_s, roles):
                return
            self._show(end_s)

    def ended_s(self, roles: frozenset[str], now_s: float) -> float:
        """Return when the last of these roles finished its last message, `now_s` for a role that is not done."""
        if not roles:
            return 0.0
        if not roles <= self.done.keys():
            return now_s
        ended_ns: int = max(self.done[role]["ended_ns"] for role in roles)
        return max(0.0, ended_ns / 1e9 - self.begin_s)

    def conclude(self) -> None:
        """Enter the remaining counts, the generator's usage and the failures into the outcome."""
        outcome, last = self._outcome, self.done.values()
        outcome.tally = self.sum
        outcome.cpu_s = sum(figures["cpu_s"] for figures in last)
        outcome.busy_share = max((figures["busy_share"] for figures in last), default=0.0)
        outcome.failures += dict.fromkeys(figures["fault"] for figures in last if figures["fault"])
        blocked = next((text for figures in last if (text := figures.get("blocked_for"))), "")
        if blocked:
            outcome.failures.append(f"the broker accepts no messages (connection.blocked): {blocked}")
        if outcome.seconds > self._shown_s + _LEAST_INTERVAL_S:
            self._show(outcome.seconds)
        elif outcome.intervals:
            self._amend()

    def _show(self, at_s: float) -> None:
        """Add the interval that ends here."""
        total, seconds = self.sum, at_s - self._shown_s
        since = total - self._shown
        latency = LatencyPair.of(self._within)
        interval = Interval(at_s, since.published, since.confirmed, since.delivered, latency)
        self._outcome.intervals.append(interval)
        self._progress.show(interval_line(interval, seconds))
        self._within.clear()
        self._shown, self._shown_s = total, at_s

    def _amend(self) -> None:
        """Add later reports to the last interval."""
        since, last = self.sum - self._shown, self._outcome.intervals[-1]
        self._outcome.intervals[-1] = replace(
            last,
            published=last.published + since.published,
            confirmed=last.confirmed + since.confirmed,
            delivered=last.delivered + since.delivered,
        )


@dataclass(slots=True)
class Stage:
    """A broker with the topology of a run; `ready` is the number of messages that the queues held before."""

    options: Namespace
    topology: RunTopology
    progress: RunProgress
    interruption: Interruption
    processes: ProcessTree | None
    control: PeerConnection
    ready: int = 0
    ceiling_per_s: float | None = None

    def usage(self) -> TreeUsage | None:
        """Return the broker's usage so far, None without --pid."""
        return self.processes.usage() if self.processes else None

    def run(self, load: Load, tasks: Mapping[str, Task] | None = None, *, count_queued: bool = False) -> RunOutcome:
        """Run a load and return its outcome; measure the generator's ceiling before the first one, if requested.

        Shapes: `tasks` are processes that replace the load's own publishers; `count_queued` asks the broker how many
        messages its queues hold when the publishers are done.
        Raises: Refusal, RunFailed, OSError before the first message; KeyboardInterrupt at the second Ctrl-C.
        """
        if getattr(self.options, "ceiling", False) and self.ceiling_per_s is None:
            self.progress.say("measuring the generator against a bare relay ...")
            self.ceiling_per_s = _ceiling_per_s(load, self.interruption)
        queued = partial(self.topology.ready, self.control) if count_queued else None
        load = replace(load, ready=load.ready or self.ready)
        return Conductor(load, self.progress, self.interruption, self.processes, tasks, queued).run()

    def result(self, outcome: RunOutcome, figures: Mapping[str, Figure] | None = None) -> Result:
        """Return the result document of an outcome."""
        return outcome.result(self.options, self.control.product, figures or {}, self.ceiling_per_s)


@contextmanager
def stage(options: Namespace, topology: RunTopology, progress: RunProgress) -> Iterator[Stage]:
    """Create the topology of a run, and always remove it at the end.

    Raises: BadOptions for a --pid that does not exist, Refusal, OSError; KeyboardInterrupt at the second Ctrl-C.
    """
    processes = process_tree(options)
    with Interruption() as interruption:
        control = PeerConnection(options.uri, PUBLISH_CHANNEL)
        made = Stage(options, topology, progress, interruption, processes, control)
        in_step = False  # a channel that the broker closed, or that still waits for answers, cannot remove the topology
        try:
            made.ready = topology.make(control, progress)
            yield made
            in_step = True
        finally:
            with suppress(OSError, Refusal):  # the loss of the broker has been reported already
                remover = control if in_step else PeerConnection(options.uri, PUBLISH_CHANNEL)
                with closing(remover):
                    remover.socket.settimeout(_REMOVE_LIMIT_S)
                    topology.remove(remover)
            if not in_step:
                control.close()


def process_tree(options: Namespace) -> ProcessTree | None:
    """Return the broker's processes, None without --pid. Raises: BadOptions for one that does not exist."""
    processes = ProcessTree(options.pid) if options.pid is not None else None
    if processes and not processes.usage().rss_bytes:
        raise BadOptions(f"--pid {options.pid}: no such process on this machine (this needs Linux)")
    return processes


def _ceiling_per_s(load: Load, interruption: Interruption) -> float:
    """Return the messages per second of one publisher and one consumer, one process each, with a relay between them.

    Raises: RunFailed.
    """
    with relay() as (address, _):
        alone = Load(
            address=address,
            material=replace(load.material, relayed=True),
            producers=1,
            queues=(("relay",),),
            demand=ReceiverPace(0, load.material.body_bytes),
            window=load.window,
            prefetch=load.prefetch,
            seconds=_CEILING_S,
            interval_s=load.interval_s,
            copies=None,
            unsent_bytes=load.unsent_bytes,
        )
        outcome = Conductor(alone, RunProgress(quiet=True), interruption).run()
    if outcome.failures:
        raise RunFailed(f"ceiling: {outcome.failures[0]}")
    return outcome.tally.delivered / outcome.deliver_s if outcome.deliver_s else 0.0


@contextmanager
def relay() -> Iterator[tuple[Address, int]]:
    """Start a relay, provide its address and pid, and stop the relay at exit. Raises: RunFailed."""
    with uninterrupted():
        process = subprocess.Popen(
            [sys.executable, "-m", "broker.perf.relay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RunFailed("the relay did not start")
            yield Address.parse(line.strip()), process.pid
            process.stdin.close()
            process.wait(END_LIMIT_S)
        finally:
            process.kill()
