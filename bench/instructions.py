"""Counts the instructions that the broker executes per message, under valgrind's callgrind.

`python -m bench.instructions --only S9,S3-16` counts this checkout, `python -m bench.instructions . ../before` two in
turn. CPU time varies with the load of a machine; this count varies by a few percent at most, so one run of each is
enough to compare two checkouts. It excludes the kernel, so a second run counts system calls per message with strace. It
also excludes timers: valgrind slows the broker some fifty times, but not the clock.

A broker serves a few messages, then many; the difference of the two counts excludes connecting and declaring.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final

from bench import brokers
from bench.checkout import HERE, Checkout, choices
from bench.perf_run import perf
from bench.run import Figures, exit_on_signal
from bench.service import BrokerFailed
from broker.figures.numerals import number_text
from broker.perf.faults import RunFailed

_VALGRIND: Final = "valgrind"
_NO_TIMERS: Final = ("--toggle-collect=__pyx_f_6uvloop_4loop___uvtimer_callback", "--collect-atstart=yes")
_STRACE: Final = "strace"
_FEW: Final = 8  # the first count is of an eighth of the messages
_LIMIT_S: Final = 900.0
_WINDOW: Final = ("-c", "1000", "-q", "1000", "-A", "100")
_NEW_KEYS: Final = ("-e", "instructions", "-k", "instructions", "--keys", "10000")  # each message has another key
_LARGE: Final = ("-c", "20", "-q", "20", "-A", "2")


@dataclass(frozen=True, slots=True)
class CountedLoad:
    """A load of `slotmq perf`: scenario and flags, the messages to publish, and the deliveries of each message."""

    words: tuple[str, ...]
    messages: int
    copies: int = 1


LOADS: Final = {
    "S1-16": CountedLoad(("throughput", "-s", "16", "-a"), 20_000),
    "S1-1024": CountedLoad(("throughput", "-s", "1024", "-a"), 20_000),
    "S2-16": CountedLoad(("throughput", "-s", "16", *_WINDOW), 20_000),
    "S2-1024": CountedLoad(("throughput", "-s", "1024", *_WINDOW), 20_000),
    "S2-204800": CountedLoad(("throughput", "-s", "204800", *_LARGE), 400),
    "S2-1048576": CountedLoad(("throughput", "-s", "1048576", *_LARGE), 80),
    "S3-16": CountedLoad(("throughput", "-s", "16", *_WINDOW, "--persistent"), 20_000),
    "S3-1024": CountedLoad(("throughput", "-s", "1024", *_WINDOW, "--persistent"), 20_000),
    "S4-16": CountedLoad(("fanout", "-s", "16", "-c", "1000", "-a"), 1_000, copies=50),
    "S4-1024": CountedLoad(("fanout", "-s", "1024", "-c", "1000", "-a"), 1_000, copies=50),
    "S6-16": CountedLoad(("latency", "-s", "16", "-r", "500", "-a", *_NEW_KEYS), 1_000),
    "S7": CountedLoad(("throughput", "-y", "0", "-s", "100", "-c", "1000", "--persistent"), 20_000),
    "S8": CountedLoad(("churn", "connections", "-w", "1"), 1_000),
    "S9": CountedLoad(("pingpong",), 2_000),
    "S9-persistent": CountedLoad(("pingpong", "--persistent"), 1_000),
    "S10": CountedLoad(("throughput", "-y", "0", "-c", "1", "--persistent"), 1_000),
    "M1-16": CountedLoad(("mqtt", "-s", "16", "-Q", "0"), 20_000),
    "M3-16": CountedLoad(("mqtt", "-s", "16", "-Q", "1"), 20_000),
    "M4-16": CountedLoad(("mqtt", "-s", "16", "-Q", "0", "-y", "50"), 1_000, copies=50),
    "M5-16": CountedLoad(("mqtt", "-s", "16", "-Q", "2"), 5_000),
}
"""The loads by the names of the rows that `make bench` measures with them."""


def main() -> int:
    """Count instructions and system calls, print a line for each scenario, and return the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, exit_on_signal)
    if not which(_VALGRIND):
        print("valgrind is not installed; it counts the instructions (apt install valgrind)", file=sys.stderr)
        return 2
    try:
        packages = {one: one.package(compiled=not options.interpreted) for one in options.checkouts}
        for name in options.only:
            found = []
            for checkout, package in packages.items():
                kept = options.keep / f"{checkout.name}-{name}" if options.keep else None
                found.append(count(package, LOADS[name], options.messages or LOADS[name].messages, kept))
                print(_line(name, checkout, found), flush=True)
    except (BrokerFailed, RunFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def count(package: Path, load: CountedLoad, messages: int, kept: Path | None = None) -> Figures:
    """Return the instructions and system calls of one delivery (of one publish, if nothing is consumed).

    Raises: BrokerFailed, RunFailed, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="slotmq-bench-") as name:
        folder = Path(name)
        little, much = _instructions(package, load, messages, folder / "callgrind")
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "callgrind.2", kept)
        figures = {"instructions": (much - little) / messages / load.copies}
        if which(_STRACE):
            little, much = _system_calls(package, load, messages, folder / "strace")
            figures["calls"] = (much - little) / messages / load.copies
    return figures


def _instructions(package: Path, load: CountedLoad, messages: int, profile: Path) -> tuple[int, int]:
    """Return the instructions of a few messages, and of `messages` more than those."""
    wrapper = (_VALGRIND, "--tool=callgrind", "--instr-atstart=no", *_NO_TIMERS, f"--callgrind-out-file={profile}")
    with brokers.slotmq(
        profile.parent / "counted", wrapper=wrapper, package=package, mqtt="mqtt" in load.words
    ) as broker:
        few = max(1, messages // _FEW)
        _publish(broker, load, few)  # fills caches; not counted
        _control(broker, "--instr=on")
        for more in (few, few + messages):
            _publish(broker, load, more)
            _control(broker, "--dump")
    return total_of(profile.with_suffix(".1")), total_of(profile.with_suffix(".2"))


def _system_calls(package: Path, load: CountedLoad, messages: int, output: Path) -> tuple[int, int]:
    """Return the system calls of a few messages, and of `messages` more than those."""
    with brokers.slotmq(output.parent / "traced", package=package, mqtt="mqtt" in load.words) as broker:
        few = max(1, messages // _FEW)
        _publish(broker, load, few)
        return _traced(broker, load, few, output), _traced(broker, load, few + messages, output)


def _traced(broker: brokers.Broker, load: CountedLoad, messages: int, output: Path) -> int:
    command = [_STRACE, "-f", "-c", "-U", "calls,name", "-o", str(output), "-p", str(broker.service.processes.root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracing:
        assert tracing.stderr is not None
        said = tracing.stderr.readline()  # strace has attached, or says why not
        _publish(broker, load, messages)
        tracing.send_signal(signal.SIGINT)
    if not output.stat().st_size:
        raise RunFailed(f"strace: {said.strip()}")
    return int(output.read_text().split()[-2])  # the sum is the last line


def _publish(broker: brokers.Broker, load: CountedLoad, messages: int) -> None:
    perf(broker, load.words[0], *load.words[1:], "-C", str(messages), limit_s=_LIMIT_S)


def _control(broker: brokers.Broker, word: str) -> None:
    """Run callgrind_control on the broker: start counting, or write the counts and reset them."""
    command = ["callgrind_control", word, str(broker.service.processes.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"callgrind_control {word}: {(done.stderr or done.stdout).strip()}")


def total_of(profile: Path) -> int:
    """Return the sum of the instructions in a profile. Raises: RunFailed if there is none."""
    with profile.open() as lines:
        for line in lines:
            if line.startswith(("summary:", "totals:")):
                return int(line.split()[1])
    raise RunFailed(f"{profile.name} has no sum")


def _line(name: str, checkout: Checkout, found: list[Figures]) -> str:
    """Return the line of the last count, with its ratio to the first."""
    last, called = found[-1], f"{number_text(found[-1]['calls']):>9} system calls" if "calls" in found[-1] else ""
    line = f"{name:14}{checkout.name:20}{last['instructions']:12,.0f} instructions{called}"
    return line if len(found) == 1 else f"{line}{last['instructions'] / found[0]['instructions']:9.3f} times"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Checkout.of, default=[HERE], help="source trees (this one)")
    parser.add_argument(
        "--only", type=choices(LOADS), default=tuple(LOADS), metavar="NAMES", help=f"some of {','.join(LOADS)}"
    )
    parser.add_argument("--interpreted", action="store_true", help="do not compile the broker")
    parser.add_argument(
        "--messages", type=int, help="messages to publish (by default each scenario has its own number)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the profiles, for callgrind_annotate")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
