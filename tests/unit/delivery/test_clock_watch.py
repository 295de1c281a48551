"""The watch over the system clock: what it writes, and what it does when the disk is full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.delivery.clock import SteadyClock
from broker.delivery.clock_watch import ClockWatch
from broker.store.clock_file import ClockFile, ClockState
from broker.store.damage import StoreFailed
from broker.store.memory_files import MemoryFiles

FOLDER = Path("/data")


class TimeOfDay:
    """A turn, reduced to the time of day that the watch reads."""

    ahead_ms = 0

    def set_ahead(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms


class FullFile(ClockFile):
    """A file on a disk that can be full."""

    full = False
    writes = 0

    def write(self, state: ClockState) -> None:
        self.writes += 1
        if self.full:
            raise StoreFailed(self.path, "no space left on device")
        super().write(state)


class Watched:
    """A watch with clocks that the test sets."""

    def __init__(self, file: FullFile, system_s: float) -> None:
        self.system_s = system_s
        self.elapsed_s = 0.0
        self.clock = SteadyClock(lambda: self.system_s, lambda: self.elapsed_s)
        self.watch = ClockWatch(file, self.clock)
        self.turn = TimeOfDay()
        self.watch.resume()
        self.watch.start(cast("Any", self.turn), list)

    async def tick(self) -> None:
        """Advance one second."""
        self.system_s += 1
        self.elapsed_s += 1
        self.watch.tick()
        if self.watch._writing is not None:
            await self.watch._writing


def new_file() -> FullFile:
    """Return the file of an empty folder."""
    files = MemoryFiles()
    files.make_folder(FOLDER)
    return FullFile(files, FOLDER)


@pytest.mark.interpreted("a file of the test takes the place of the clock's")
async def test_only_a_correction_is_written() -> None:
    """Each correction is written once, in either direction; small differences are not written."""
    file = new_file()
    watched = Watched(file, 1000.0)
    await watched.tick()
    watched.system_s += 0.9
    await watched.tick()
    assert (file.writes, watched.turn.ahead_ms) == (0, -900)
    with capture_logs() as logged:
        for by_s in (5000, -3000):
            watched.system_s += by_s
            for _ in range(3):
                await watched.tick()
    assert [(entry["event"], entry["by_s"]) for entry in logged] == [
        ("clock.corrected", 5000.9),
        ("clock.corrected", -3000.0),
    ]
    assert file.writes == 2
    assert file.read().ahead_ms == -2_000_900
    assert watched.clock() == 1008.0  # the clock continued as corrected


@pytest.mark.interpreted("a file of the test takes the place of the clock's")
async def test_a_full_disk_is_told_of_once_and_asked_again() -> None:
    """A full disk is logged once and retried, at the start and later; the broker continues."""
    file = new_file()
    file.write(ClockState(0, 9_000_000))
    file.full = True
    with capture_logs() as logged:
        watched = Watched(file, 1000.0)
        assert watched.clock() == 9000.0
        for _ in range(3):
            await watched.tick()
        file.full = False
        await watched.tick()
        await watched.tick()
    assert [entry["event"] for entry in logged] == ["clock.resumed", "clock.not_written"]
    assert file.read().ahead_ms == 8_000_000
    assert file.writes == 6


@pytest.mark.interpreted("a file of the test takes the place of the clock's")
async def test_nothing_is_written_behind_a_stop() -> None:
    """A timer that fires after the stop writes nothing."""
    file = new_file()
    watched = Watched(file, 1000.0)
    await asyncio.gather(watched.watch.stop())
    assert file.read() == ClockState(0, 1_000_000)
    watched.system_s += 5000
    await watched.tick()
    assert file.writes == 1
