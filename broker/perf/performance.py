"""Performs a load from beginning to end: topology, ceiling, run, and cleanup."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from broker.perf.conductor import Conductor
from broker.perf.crew import END_LIMIT_S, RunFailed
from broker.perf.faults import BadOptions, Refusal
from broker.perf.interruption import Interruption, uninterrupted
from broker.perf.load import Load
from broker.perf.outcome import RunOutcome, result_of
from broker.perf.peer import Address, PeerConnection
from broker.perf.process_tree import ProcessTree
from broker.perf.progress import RunProgress
from broker.perf.receiver import ReceiverPace
from broker.perf.result import Figure, Result
from broker.perf.topology import RunTopology
from broker.perf.wire import PUBLISH_CHANNEL

__all__ = []

SECONDS: Final = 1.0


def ceiling_per_s(load: Load, interruption: Interruption) -> float:
    """Return the messages per second of one publisher and one consumer, one process each, with a relay between them.

    Raises: RunFailed.
    """
    with relay() as address:
        alone = replace(
            load,
            address=address,
            material=replace(load.material, relayed=True),
            producers=1,
            queues=(("relay",),),
            demand=ReceiverPace(0, load.material.body_bytes),
            messages=None,
            deliveries=None,
            per_s=None,
            seconds=SECONDS,
            copies=None,
            ready=0,
        )
        outcome = Conductor(alone, RunProgress(quiet=True), interruption).run()
    if outcome.failures:
        raise RunFailed(f"ceiling: {outcome.failures[0]}")
    return outcome.tally.delivered / outcome.deliver_s if outcome.deliver_s else 0.0


@contextmanager
def relay() -> Iterator[Address]:
    """Start a relay, provide its address, and stop the relay at exit.

    Raises: RunFailed.
    """
    with uninterrupted():
        process = subprocess.Popen(
            [sys.executable, "-m", "broker.perf.relay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
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
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


MOST_PROCESSES: Final = 4

_REMOVE_LIMIT_S: Final = 10.0  # deleting a queue of millions of messages takes long

Figures = Callable[[RunOutcome], Mapping[str, Figure]]


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker with the topology of a run; `ready` is the number of messages that the queues held before."""

    control: PeerConnection
    ready: int
    interruption: Interruption


@contextmanager
def stage(address: Address, topology: RunTopology, progress: RunProgress) -> Iterator[Stage]:
    """Create the topology of a run, and always remove it at exit.

    Raises: Refusal, OSError; KeyboardInterrupt at the second Ctrl-C.
    """
    with Interruption() as interruption:
        control = PeerConnection(address, PUBLISH_CHANNEL)
        in_step = False  # a channel that the broker closed, or that still waits for answers, cannot remove the topology
        try:
            yield Stage(control, topology.make(control, progress), interruption)
            in_step = True
        finally:
            with suppress(OSError, Refusal):  # the loss of the broker has been reported already
                _clear(topology, control if in_step else PeerConnection(address, PUBLISH_CHANNEL))
            if not in_step:
                control.close()


def _clear(topology: RunTopology, peer: PeerConnection) -> None:
    """Remove the topology and close the connection."""
    try:
        peer.socket.settimeout(_REMOVE_LIMIT_S)
        topology.remove(peer)
    finally:
        peer.close()


def perform(
    options: argparse.Namespace,
    progress: RunProgress,
    topology: RunTopology,
    load: Load,
    figures: Figures = lambda _: {},
) -> Result:
    """Run a load and return its result.

    Raises: BadOptions, Refusal, RunFailed, OSError before the first message; KeyboardInterrupt at the second Ctrl-C.
    """
    processes = watched(options)
    with stage(load.address, topology, progress) as here:
        ceiling = ceiling_of(options, load, progress, here.interruption)
        ready = partial(topology.ready, here.control)
        outcome = Conductor(replace(load, ready=here.ready), progress, here.interruption, processes, ready=ready).run()
    return result_of(options, here.control.product, outcome, figures=figures(outcome), ceiling_per_s=ceiling)


def ceiling_of(
    options: argparse.Namespace, load: Load, progress: RunProgress, interruption: Interruption
) -> float | None:
    """Return the generator's ceiling, None if it was not requested.

    Raises: RunFailed.
    """
    if not options.ceiling:
        return None
    progress.say("measuring the generator against a bare relay ...")
    return ceiling_per_s(load, interruption)


def watched(options: argparse.Namespace) -> ProcessTree | None:
    """Return the broker's process tree that --pid names.

    Raises: BadOptions if there is no such process.
    """
    if options.pid is None:
        return None
    tree = ProcessTree(options.pid)
    if not tree.usage().rss_bytes:
        raise BadOptions(f"--pid {options.pid}: no such process on this machine (this needs Linux)")
    return tree


def seconds_of(options: argparse.Namespace, default_s: float) -> float | None:
    """Return the duration of a run, None for no limit."""
    if options.time is not None:
        return options.time or None
    return None if options.pmessages or options.cmessages else default_s


def processes_of(options: argparse.Namespace) -> int:
    """Return the maximum number of publisher processes, which is also that of consumer processes."""
    if options.processes:
        return int(options.processes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_PROCESSES, cores)


def demand_of(options: argparse.Namespace) -> ReceiverPace:
    """Return how consumers receive and ack.

    Raises: BadOptions.
    """
    if options.autoack and options.ack_every > 1:
        raise BadOptions("--autoack and --multi-ack-every do not go together")
    if not options.autoack and 0 < options.prefetch < options.ack_every:
        raise BadOptions(f"--multi-ack-every {options.ack_every} is never reached with --qos {options.prefetch}")
    return ReceiverPace(0 if options.autoack else options.ack_every, options.size, options.consumer_rate)


def check_sides(options: argparse.Namespace) -> None:
    """Check that the options include the publishers or consumers that the run needs.

    Raises: BadOptions.
    """
    if not options.producers and not options.consumers:
        raise BadOptions("-x 0 -y 0 leaves nothing to do")
    if options.pmessages and not options.producers:
        raise BadOptions("--pmessages needs a publisher")
    if options.cmessages and not options.consumers:
        raise BadOptions("--cmessages needs a consumer")
    if options.confirm and not options.producers:
        raise BadOptions("--confirm needs a publisher")
