"""Run a load: create its topology, start the processes together, add up their reports, and clean up."""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from broker.perf import process_group
from broker.perf.faults import Refusal, RunFailed
from broker.perf.machine import ProcessTree, TreeUsage
from broker.perf.outcome import RunOutcome
from broker.perf.parts import Load
from broker.perf.peer import Address, PeerConnection
from broker.perf.process_group import Interruption, ProcessGroup, run_group, uninterrupted
from broker.perf.progress import RunProgress
from broker.perf.receiver import ReceiverPace
from broker.perf.result import Figure, Result
from broker.perf.topology import RunTopology
from broker.perf.wire import PUBLISH_CHANNEL

STALL_S: Final = 10.0  # a run without progress ends after this time, or later at rates below 0.3 per second

_CONNECT_LIMIT_S: Final = 120.0
_STEP_S: Final = 0.02
_IDLE_WORK_S: Final = 0.1  # a broker may defer work until it is idle; that work belongs to the run
_UNKNOWN_IDLE_S: Final = 1.0  # the run ends after this time without a delivery, if the number of deliveries is unknown
_TIMED_IDLE_S: Final = 0.5  # the run ends after this time without a delivery, once its time limit has passed
_TIMED_SHARE: Final = 0.05  # after the time limit, give up a backlog above this share of the deliveries and above 1000
_CEILING_S: Final = 1.0
_REMOVE_LIMIT_S: Final = 10.0  # deleting a queue of millions of messages takes a while


class Conductor:
    """One run of a load."""

    def __init__(
        self,
        load: Load,
        progress: RunProgress,
        interruption: Interruption,
        processes: ProcessTree | None = None,
        ready: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        """Prepare a run; `ready` returns the number of ready messages in each queue."""
        self._load = load
        self._interruption = interruption
        self._processes = processes
        self._ready = ready
        self._outcome = RunOutcome(progress, load.interval_s)
        self._drain_s: float | None = None
        self._time_is_over = False
        self._publishers: frozenset[str] = frozenset()
        self._consumers: frozenset[str] = frozenset()

    def run(self) -> RunOutcome:
        """Run the load and return its outcome; errors after the start are in its `failures`.

        Raises: RunFailed when the processes cannot connect; Refusal and OSError of `ready`; KeyboardInterrupt at the
        second Ctrl-C.
        """
        load = self._load
        publishing, consuming = enumerate(load.publish_shares()), enumerate(load.consume_shares())
        publishers = {f"publisher {at}": partial(run_group, load.publishing, share) for at, share in publishing}
        consumers = {f"consumer {at}": partial(run_group, load.consuming, share) for at, share in consuming}
        self._publishers, self._consumers = frozenset(publishers), frozenset(consumers)
        with uninterrupted():
            group = ProcessGroup({**consumers, **publishers}, int(load.interval_s * 1e9))
        with group:
            group.gather(process_group.CONNECTED, _CONNECT_LIMIT_S)
            if self._processes:
                self._processes.reset_peak()
                self._outcome.before = self._processes.usage()
            begin_ns = time.monotonic_ns()
            stop_ns = begin_ns + int(load.seconds * 1e9) if load.seconds else 0
            group.send((begin_ns, stop_ns), self._publishers)
            group.send((begin_ns, 0), self._consumers)
            self._outcome.begin_s = begin_ns / 1e9
            self._follow(group)
            if self._processes:
                time.sleep(_IDLE_WORK_S)
                self._outcome.after = self._processes.usage()
        return self._outcome

    def _follow(self, group: ProcessGroup) -> None:
        """Collect the reports of the processes until all are done or one fails, and tell them when to stop."""
        outcome, stop_s = self._outcome, 0.0
        while outcome.done.keys() != self._publishers | self._consumers:
            try:
                reports = group.reports(_STEP_S)
            except RunFailed as error:
                outcome.failures.append(str(error))
                break
            for role, word, figures in reports:
                outcome.add_report(role, figures, done=word == process_group.DONE)
            at_s = time.monotonic() - outcome.begin_s
            outcome.show_intervals(at_s, self._publishers | self._consumers)
            if self._interruption.requested:
                outcome.interrupted = True
            if stop_s:
                if at_s > stop_s + process_group.END_LIMIT_S:
                    outcome.failures.append("a process of the generator did not end")
                    break
            elif self._must_stop(group, at_s):
                stop_s = at_s
                group.send(process_group.STOP)
        outcome.conclude(self._publishers, self._consumers)
        expected = self._expected()
        if self._time_is_over and self._publishers and self._consumers and expected is not None:
            outcome.left_behind = max(0, expected - outcome.tally.delivered)

    def _must_stop(self, group: ProcessGroup, at_s: float) -> bool:
        """Return whether all processes must stop now; at the first Ctrl-C, tell only the publishers to stop."""
        outcome, load = self._outcome, self._load
        if any(figures["fault"] for figures in outcome.done.values()):
            return True
        if self._consumers and self._consumers <= outcome.done.keys():
            return True
        if outcome.interrupted and not self._time_is_over:
            self._time_is_over = True
            group.send(process_group.STOP, self._publishers)
        if load.seconds and at_s >= load.seconds:
            self._time_is_over = True
        if self._publishers <= outcome.done.keys():
            return self._drained(group, at_s)
        return self._stalled(at_s)

    def _drained(self, group: ProcessGroup, at_s: float) -> bool:
        """Return whether to stop after the publishers are done: all messages have arrived, or the rest is given up."""
        load, outcome = self._load, self._outcome
        if not self._consumers:
            return True
        if not self._publishers and load.deliveries is None:
            return self._time_is_over  # the number of messages that other clients publish is unknown
        if self._drain_s is None:
            self._drain_s = outcome.moved_s = at_s
            group.send(process_group.DRAIN, self._consumers)
            if self._ready and self._publishers:
                outcome.queued_at_end = sum(self._ready())
        if not outcome.reported_since(self._drain_s, self._consumers):
            return False
        total, expected = outcome.tally, self._expected()
        if expected is not None and total.delivered >= expected:
            return True
        idle_s = at_s - max(outcome.moved_s, self._drain_s)
        if self._time_is_over:
            behind = 0 if expected is None else expected - total.delivered
            return behind > max(1000, _TIMED_SHARE * total.delivered) or idle_s > _TIMED_IDLE_S
        if expected is None:
            return idle_s > _UNKNOWN_IDLE_S
        if idle_s <= self._stall_limit_s():
            return False
        outcome.failures.append(f"{expected - total.delivered:,} of {expected:,} messages were not delivered")
        return True

    def _stalled(self, at_s: float) -> bool:
        """Return whether no count has changed for too long: a failure, unless the broker blocks a publisher."""
        if at_s - self._outcome.moved_s <= self._stall_limit_s():
            return False
        if not self._outcome.tally.blocked:
            self._outcome.failures.append(f"nothing was published or confirmed for {self._stall_limit_s():.0f} s")
        return True

    def _stall_limit_s(self) -> float:
        slowest = min(self._load.per_s or 1.0, self._load.demand.per_s or 1.0)
        return max(STALL_S, 3 / slowest)

    def _expected(self) -> int | None:
        """Return the expected number of deliveries, or None if it is unknown."""
        load, total = self._load, self._outcome.tally
        if load.deliveries is not None:
            return load.deliveries
        if load.copies is None:
            return None
        return load.ready + (total.published - total.nacked - total.returned) * load.copies


@dataclass(slots=True)
class Stage:
    """A broker with the topology of a run. Shapes: `ready` is the number of messages in the queues before the run."""

    options: Namespace
    topology: RunTopology
    progress: RunProgress
    interruption: Interruption
    processes: ProcessTree | None
    control: PeerConnection
    ready: int = 0
    ceiling_per_s: float | None = None

    def usage(self) -> TreeUsage | None:
        """Return what the broker has used so far, or None without --pid."""
        return self.processes.usage() if self.processes else None

    def run(self, load: Load, *, count_queued: bool = False) -> RunOutcome:
        """Run a load and return its outcome; first measure the generator's ceiling, if requested and not done yet.

        Shapes: with consumers, `count_queued` also counts the queued messages when the publishers are done.
        Raises: RunFailed before the first message; Refusal, OSError of that count; KeyboardInterrupt (second Ctrl-C).
        """
        if getattr(self.options, "ceiling", False) and self.ceiling_per_s is None:
            self.progress.show("measuring the generator against a bare relay ...")
            self.ceiling_per_s = _ceiling_per_s(load, self.interruption)
        queued = partial(self.control.queue_counts, self.topology.queues) if count_queued else None
        load = replace(load, ready=load.ready or self.ready)
        return Conductor(load, self.progress, self.interruption, self.processes, queued).run()

    def result(self, outcome: RunOutcome, figures: Mapping[str, Figure] | None = None) -> Result:
        return outcome.result(self.options, self.control.product, figures or {}, self.ceiling_per_s)


@contextmanager
def stage(options: Namespace, topology: RunTopology, progress: RunProgress) -> Iterator[Stage]:
    """Create a run's topology; at exit remove it if the broker answers. Raises: Refusal, OSError; KeyboardInterrupt."""
    with Interruption() as interruption:
        control = PeerConnection(options.uri, PUBLISH_CHANNEL)
        made = Stage(options, topology, progress, interruption, options.pid, control)
        usable = False  # the topology cannot be removed on a channel that is closed or still waits for answers
        try:
            made.ready = topology.make(control, progress)
            yield made
            usable = True
        finally:
            with suppress(OSError, Refusal):  # the loss of the broker has already been reported
                remover = control if usable else PeerConnection(options.uri, PUBLISH_CHANNEL)
                with closing(remover):
                    remover.socket.settimeout(_REMOVE_LIMIT_S)
                    topology.remove(remover)
            if not usable:
                control.close()


def _ceiling_per_s(load: Load, interruption: Interruption) -> float:
    """Return the rate that one publisher and one consumer reach through a relay. Raises: RunFailed."""
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
    """Start a relay, yield its address and pid, and stop it at exit. Raises: RunFailed."""
    with uninterrupted():
        process = subprocess.Popen(
            [sys.executable, "-m", "broker.perf.relay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RunFailed("the relay did not start")
            yield Address("127.0.0.1", int(line)), process.pid
        finally:
            process.kill()  # it has no state to save
