"""Latency: a steady rate, and the time of each message from when it was due.

A publisher that waits for a slow broker sends late; counted from the time of sending, those messages would look fast.
Hence the open schedule: latency counts from the time when a message was due. The lateness of sending is shown, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from broker.perf.addressing import add_addressing
from broker.perf.faults import BadOptions
from broker.perf.flags import add_load, add_scenario, add_time
from broker.perf.histogram import Histogram
from broker.perf.outcome import RunOutcome
from broker.perf.performance import perform
from broker.perf.progress import RunProgress
from broker.perf.result import Figure, Result
from broker.perf.scenarios import SCENARIOS
from broker.perf.scenarios.throughput import load_of
from broker.perf.stamp import DUE_BYTES

RATE: Final = 1000.0
SECONDS: Final = 10.0


def add_latency(commands: Any) -> None:
    """Add the scenario's parser."""
    parser = add_scenario(commands, "latency", f"{SCENARIOS['latency']}; default {RATE:g} messages per second")
    add_time(add_load(parser), SECONDS)
    add_addressing(parser)
    parser.set_defaults(rate=RATE)


def run_latency(options: argparse.Namespace, progress: RunProgress) -> Result:
    """Run the scenario.

    Raises: BadOptions, Fault, RunFailed, OSError.
    """
    if options.size < DUE_BYTES:
        raise BadOptions(f"--size {options.size}: the time that is measured from takes {DUE_BYTES} bytes of the body")
    if not options.producers or not options.consumers:
        raise BadOptions("latency needs a publisher and a consumer")
    addressing, load = load_of(options, SECONDS)
    return perform(options, progress, addressing.topology, load, _figures)


def _figures(outcome: RunOutcome) -> Mapping[str, Figure]:
    return {**_pair("from_send", outcome.sent_times), **_pair("sent_late", outcome.late_times)}


def _pair(name: str, times: Histogram) -> Mapping[str, Figure]:
    if not times.count:
        return {}
    p50, p99 = times.percentiles((50, 99))
    return {f"{name}_p50": Figure(p50 / 1e3, "us"), f"{name}_p99": Figure(p99 / 1e3, "us")}
