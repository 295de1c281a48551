"""Runs a broker, and writes the long turns of its event loop with their CPU time to a file.

``python turn_sampler.py FILE -m broker serve ...``. Every millisecond the loop reads the CPU time of its own thread, to
which no other program or thread adds. With the word ``names`` before FILE, a thread also pings the loop repeatedly and
samples the loop's stack until it answers. Compiled functions have no frames to sample: the compiled broker is timed,
and a broker run from sources names the function.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

_EVERY_S = 0.002
_TICK_S = 0.001
_LEAST_S = 0.01  # shorter turns are not written
_LEAST_CPU_S = 0.002
_COMMON_SHARE = 0.5  # of the samples contain the named function
_PACKAGE = f"{Path(__file__).resolve().parents[2] / 'broker'}/"


def prefix(file: Path, *, names: bool) -> tuple[str, ...]:
    """Return the interpreter options that run a broker under this sampler; `names` records functions, too."""
    return (__file__, *(["names"] if names else []), str(file))


def deepest(samples: Sequence[Sequence[str]]) -> str:
    """Return the innermost function of at least half of the samples, which list functions from the outermost one."""
    counts = Counter(name for sample in samples for name in dict.fromkeys(sample))
    depths: dict[str, int] = {}
    for sample in samples:
        for depth, name in enumerate(sample):
            depths[name] = max(depths.get(name, 0), depth)
    common = [name for name, count in counts.items() if count >= _COMMON_SHARE * len(samples)]
    return max(common, key=lambda name: depths[name], default="")


def _names(frame: FrameType | None) -> list[str]:
    """Return the broker's functions that the loop called, from the outermost to the innermost."""
    names: list[str] = []
    while frame is not None and frame.f_code is not asyncio.Runner.run.__code__:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            names.append(f"{file.removeprefix(_PACKAGE)} {frame.f_code.co_name}")
        frame = frame.f_back
    return names[::-1]


def _watch(loop: asyncio.AbstractEventLoop, thread: int, file: Path) -> None:
    """Write a line for each long turn: its end, its seconds, its function."""
    answered = threading.Event()
    with file.open("a", buffering=1) as lines:
        while True:
            answered.clear()
            asked = time.monotonic()
            loop.call_soon_threadsafe(answered.set)
            samples = []
            while not answered.wait(_EVERY_S):
                samples.append(_names(sys._current_frames().get(thread)))  # noqa: SLF001 - documented for debugging
            took = time.monotonic() - asked
            if took > _LEAST_S and samples:
                lines.write(json.dumps([time.monotonic(), took, deepest(samples)]) + "\n")
            time.sleep(_EVERY_S)


def _clock(loop: asyncio.AbstractEventLoop, file: Path) -> None:
    """Write a line for each turn with much CPU time: its end, its CPU seconds (at most a tick too many), None."""
    lines = file.open("a", buffering=1)
    before = time.thread_time()

    def tick() -> None:
        nonlocal before
        now = time.thread_time()
        if now - before > _LEAST_CPU_S:
            lines.write(json.dumps([time.monotonic(), now - before, None]) + "\n")
        before = now
        loop.call_later(_TICK_S, tick)

    loop.call_soon(tick)


def _watched(make: Callable[[], Any], file: Path, *, names: bool) -> Callable[[], Any]:
    """Return a factory of event loops whose turns are recorded; call it in the thread that runs the loop."""

    def made() -> Any:
        loop = make()
        _clock(loop, file)
        if names:
            threading.Thread(target=_watch, args=(loop, threading.get_ident(), file), daemon=True).start()
        return loop

    return made


if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.pop(0)  # the folder of this file
    with_names = sys.argv[1] == "names"
    uvloop.new_event_loop = _watched(uvloop.new_event_loop, Path(sys.argv[1 + with_names]), names=with_names)
    sys.argv[:] = sys.argv[3 + with_names :]  # without this file, its arguments and -m
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
