"""Measures the generator's own maximum rate, against a bare relay of the same bytes instead of a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from broker.perf.conductor import Conductor
from broker.perf.crew import END_LIMIT_S, RunFailed
from broker.perf.interruption import Interruption, uninterrupted
from broker.perf.load import Load
from broker.perf.peer import Address
from broker.perf.progress import RunProgress
from broker.perf.receiver import ReceiverPace

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
