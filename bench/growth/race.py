"""Measures a curve: starts a broker for every size, and then measures one size after the other, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import brokers
from bench.brokers import Broker, NotStarted
from bench.growth.curve import Cell, Curve
from bench.growth.herd import Herd
from bench.growth.plan import Plan
from broker.perf.faults import Fault
from broker.perf.process_tree import ProcessTree

_WARM_UP_S = 30.0


@dataclass(slots=True)
class Track:
    """The circumstances of the curves. Units: no long step begins after the `deadline` of the monotonic clock."""

    plan: Plan
    package: Path
    folder: Path | None
    tell: Callable[[str], None]
    deadline: float
    failures: list[str]

    def late(self) -> bool:
        """Return whether the deadline forbids another long step."""
        return time.monotonic() > self.deadline

    def fail(self, text: str) -> None:
        """Record and report what could not be measured."""
        self.failures.append(text)
        self.tell(f"FAILED: {text}")


@dataclass(slots=True)
class _Runner:
    size: int
    processes: ProcessTree
    herd: Herd


def measure(curve: Curve, track: Track) -> list[dict[str, Any]]:
    """Return the cells of a curve: one for each size and round."""
    cells: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="slotmq-growth-", dir=track.folder)))
        runners = list(_runners(curve, track, folder, stack))
        for turn in range(track.plan.rounds):
            for runner in list(runners):
                try:
                    cell = _cell(runner, track.plan)
                except (Fault, OSError) as error:
                    track.fail(f"{curve.name} at {runner.size:,}: {error}")
                    runners.remove(runner)
                    continue
                cells.append({"size": runner.size, "round": turn, **cell})
                track.tell(
                    f"{curve.name:28} {runner.size:>10,}  {cell['cpu_us']:8.2f} CPU-us per message"
                    f"  {cell['per_s']:10,.0f}/s"
                )
    return cells


def _runners(curve: Curve, track: Track, folder: Path, stack: ExitStack) -> Iterator[_Runner]:
    """Yield a broker with the warmed-up load of each size."""
    for size in curve.sizes:
        if track.late():
            track.fail(f"{curve.name} at {size:,}: the time was used up")
            return
        begun = time.monotonic()
        try:
            broker = stack.enter_context(brokers.slotmq(folder / str(size), package=track.package))
            herd = curve.prepare(broker.address, size, track.tell)
            stack.callback(herd.close)
            target = herd.published + curve.warm_up(size)
            herd.run(_WARM_UP_S, partial(_has_published, herd, target))
        except (Fault, OSError, NotStarted) as error:
            track.fail(f"{curve.name} at {size:,}: {error}")
            continue
        track.tell(f"{curve.name:28} {size:>10,}  ready after {time.monotonic() - begun:.1f} s")
        yield _Runner(size, _processes(broker), herd)


def _has_published(herd: Herd, target: int) -> bool:
    return herd.published >= target


def _processes(broker: Broker) -> ProcessTree:
    assert broker.processes is not None  # it was started here
    return broker.processes


def _cell(runner: _Runner, plan: Plan) -> Cell:
    """Return the cost of one round. Raises: Stalled, Refusal, BrokenStream, OSError."""
    herd, processes = runner.herd, runner.processes
    herd.run(plan.settle_s)
    before = processes.usage()
    moved = herd.run(plan.seconds)
    after = processes.usage()
    messages = max(1.0, moved.messages)
    cpu_s = after.cpu_s - before.cpu_s
    return {
        "messages": messages,
        "per_s": messages / moved.seconds,
        "cpu_us": cpu_s / messages * 1e6,
        "busy_share": cpu_s / moved.seconds,
        "rss_bytes": after.rss_bytes,
    }
