"""Performs a run from beginning to end: topology, ceiling, load, and cleanup."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from broker.perf.conductor import Conductor
from broker.perf.crew import END_LIMIT_S, Interruption, Task, uninterrupted
from broker.perf.faults import BadOptions, Refusal, RunFailed
from broker.perf.load import Load
from broker.perf.machine import ProcessTree, TreeUsage
from broker.perf.outcome import RunOutcome
from broker.perf.peer import Address, PeerConnection
from broker.perf.progress import RunProgress
from broker.perf.receiver import ReceiverPace
from broker.perf.result import Figure, Result
from broker.perf.topology import RunTopology
from broker.perf.wire import PUBLISH_CHANNEL

_CEILING_S: Final = 1.0
_REMOVE_LIMIT_S: Final = 10.0  # deleting a queue of millions of messages takes a while


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
        """Return what the broker has used so far, None without --pid."""
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
    with _relay() as address:
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
def _relay() -> Iterator[Address]:
    """Start a relay, provide its address, and stop the relay at exit.

    Raises: RunFailed.
    """
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
            yield Address.parse(line.strip())
            process.stdin.close()
            process.wait(END_LIMIT_S)
        finally:
            process.kill()
