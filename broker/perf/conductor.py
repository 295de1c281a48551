"""Conducts a run: starts the generator's processes together, follows their reports, and ends them in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from broker.perf.crew import Crew, Task
from broker.perf.driver import CONNECTED, DRAIN, LEAVE, LEFT, STOP, Crowd, run_crowd
from broker.perf.faults import RunFailed
from broker.perf.interruption import Interruption, uninterrupted
from broker.perf.ledger import Ledger
from broker.perf.load import Load
from broker.perf.machine import ProcessTree
from broker.perf.outcome import RunOutcome
from broker.perf.parts import Consumers, Publishers
from broker.perf.progress import RunProgress

T = TypeVar("T")

STALL_S: Final = 10.0  # the run ends after this time without a message while messages are due

_CONNECT_LIMIT_S: Final = 120.0
_END_LIMIT_S: Final = 20.0
_STEP_S: Final = 0.02
_AFTERGLOW_S: Final = 0.1  # a broker may defer work until it is idle; that work belongs to the run
_UNKNOWN_QUIET_S: Final = 1.0  # for an unknown number of deliveries
_TIMED_QUIET_S: Final = 0.5  # after the time limit
_TIMED_SHARE: Final = 0.05  # after the time limit, a larger undelivered share is not waited for


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
    ) -> None:
        """Prepare a run.

        Shapes: `publishers` are processes that replace the load's own publishers; `ready` asks the broker how many
        messages its queues hold.
        """
        self._load = load
        self._tasks = publishers
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
        publishers = self._tasks or tasks("publisher", Publishers, load.publish_shares())
        consumers = tasks("consumer", Consumers, load.consume_shares())
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
