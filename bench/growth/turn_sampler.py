"""Runs a broker, and writes down the longest turns of its loop with what each computed.

``python turn_sampler.py FILE -m broker serve ...``. The loop notes each millisecond what its thread has computed since:
no other program and no other thread adds to that. With the word ``names`` before FILE a thread also asks the loop for
a sign of life again and again, and samples the loop's stack while it waits for one. Compiled functions have no frames
to sample, so the product is timed, and a broker of sources says where.
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
_MOST = 0.5  # the share of the samples that the named function and its callers have
_PACKAGE = f"{Path(__file__).resolve().parents[2] / 'broker'}/"


def prefix(file: Path, *, names: bool) -> tuple[str, ...]:
    """Return the interpreter options that run a broker so; with `names` the file also has the functions."""
    return (__file__, *(["names"] if names else []), str(file))


def deepest(samples: Sequence[Sequence[str]]) -> str:
    """Return the innermost function that most samples have, each from the outermost to the innermost."""
    counts = Counter(name for sample in samples for name in dict.fromkeys(sample))
    depths: dict[str, int] = {}
    for sample in samples:
        for depth, name in enumerate(sample):
            depths[name] = max(depths.get(name, 0), depth)
    common = [name for name, count in counts.items() if count >= _MOST * len(samples)]
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
    """Write a line for each turn that took long: when it ended, its seconds, its function."""
    answered = threading.Event()
    with file.open("a", buffering=1) as lines:
        while True:
            answered.clear()
            asked = time.monotonic()
            loop.call_soon_threadsafe(answered.set)
            samples = []
            while not answered.wait(_EVERY_S):
                samples.append(_names(sys._current_frames().get(thread)))  # noqa: SLF001 - as its page says
            took = time.monotonic() - asked
            if took > _LEAST_S and samples:
                lines.write(json.dumps([time.monotonic(), took, deepest(samples)]) + "\n")
            time.sleep(_EVERY_S)


def _clock(loop: asyncio.AbstractEventLoop, file: Path) -> None:
    """Write a line for each turn that computed much: when it ended, its CPU seconds, at most a tick too many."""
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
    """Return a maker of event loops that are watched from the thread that makes them."""

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
