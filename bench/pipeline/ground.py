"""The state shared by the parts: a Spark session, slots, a lake, and the race of contestants in turn."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from bench.run import Figures
from bench.stage import Stage, WrongResult
from bench.topics import workload
from broker.perf import wire
from broker.perf.machine import ProcessTree
from broker.pipeline.job import Progress
from broker.pipeline.jobs.archive import ArchiveOptions, run_archive
from broker.pipeline.lake.lake import Lake
from broker.slot_files.slot_file import PERSISTENT
from broker.slot_files.slot_folder import SlotFolder
from broker.store.files import Files
from broker.store.record import encode_route

EXCHANGE = "bench"
TAP = "bench"
_HEAD_AT = 7
_DAY_MS = 86_400_000
_ROWS_PER_MS = 1000
_SEED = 20_260_101
CURSOR = "bench"
Work = Callable[[Path], int]
"""Performs a task once in the given empty folder, and returns the number of rows."""


class SlotStore:
    """A data folder to which slots of messages are added: random bodies, keys in turn."""

    def __init__(self, path: Path, keys: Sequence[str], *, body_bytes: int, slot_rows: int, now_ms: int) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._folder = SlotFolder.open(Files(), path / "slots", sync=False)
        self._routes = [encode_route(EXCHANGE, key) for key in keys]
        self._header = _content_header(body_bytes)
        self._body_bytes = body_bytes
        self._slot_rows = slot_rows
        self._begin_ms = now_ms // _DAY_MS * _DAY_MS - _DAY_MS  # yesterday, so that all messages are of one day
        self._next_id = 1
        self._random = Random(_SEED)

    def add(self, rows: int) -> None:
        """Write slot files with `rows` more messages."""
        end = self._next_id + rows
        while self._next_id < end:
            self._add_slot(min(self._slot_rows, end - self._next_id))

    def _add_slot(self, rows: int) -> None:
        first, size, routes, header = self._next_id, self._body_bytes, self._routes, self._header
        block = self._random.randbytes(rows * size)
        file = self._folder.begin("/", TAP, 1, first)
        add = file.add
        for row in range(rows):
            number = first + row
            route = routes[number * 7919 % len(routes)]
            body = block[row * size : (row + 1) * size]
            add(number, self._begin_ms + number // _ROWS_PER_MS, PERSISTENT, route, header, body)
        self._next_id += rows
        self._folder.seal(file, self._next_id)

    def close(self) -> None:
        """Release the folder, so that a broker can open it."""
        self._folder.close()


def _content_header(body_bytes: int) -> bytes:
    frame = wire.content(1, bytes(body_bytes), persistent=True)
    size = int.from_bytes(frame[3:_HEAD_AT], "big")
    return frame[_HEAD_AT : _HEAD_AT + size]


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Ground:
    """The state shared by the parts of a run; slots and lake are created at their first use."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.plan: Any = stage.plan
        self.folder = stage.folder

    @cached_property
    def spark(self) -> SparkSession:
        """The session that all contestants share."""
        from broker.pipeline.spark.session import session

        return session(conf={"spark.driver.memory": self.plan.driver_memory}, app="slotmq-bench")

    @cached_property
    def keys(self) -> list[str]:
        return workload.keys(self.plan.keys)

    def new_store(self, name: str) -> SlotStore:
        """Return an empty data folder, named as `brokers.slotmq` names one."""
        plan, now_ms = self.plan, time.time_ns() // 1_000_000
        path = self.folder / name / "slotmq"
        return SlotStore(path, self.keys, body_bytes=plan.body_bytes, slot_rows=plan.slot_rows, now_ms=now_ms)

    @cached_property
    def slots(self) -> Path:
        """The data folder with the plan's rows in slots."""
        store = self.new_store("slots")
        store.add(self.plan.rows)
        store.close()
        return store.path

    @cached_property
    def lake(self) -> Path:
        """The lake with the plan's rows."""
        path = self.folder / "lake"
        self.archive(self.slots, path, self.plan.rows)
        return path

    def archive(self, data: Path, lake: Path, rows: int) -> int:
        """Archive a data folder's slots into a lake with the job itself; return the number of rows.

        Raises: WrongResult when the number of rows is wrong.
        """
        options = ArchiveOptions(spark=lambda: self.spark, lake=lake, path=str(data), cursor=CURSOR, seal=False)
        values = run_archive(options, quiet("archive")).values
        if values["rows"] != rows or values["bad"]:
            raise WrongResult(f"archive: {values['rows']:,} of {rows:,} rows, {values['bad']:,} bad ones")
        return rows

    def lake_files(self) -> list[str]:
        lake = Lake(self.lake)
        return [str(lake.message_table.folder / file.path) for file in lake.files()]

    def race(self, part: str, contestants: Mapping[str, Work], rounds: int) -> None:
        """Measure the rows per second and CPU time of contestants in turn."""
        self.in_turn(part, {name: partial(self.lap, work) for name, work in contestants.items()}, rounds)

    def in_turn(self, part: str, contestants: Mapping[str, Callable[[], Figures]], rounds: int) -> None:
        """Measure contestants in turn; an extra first round warms up the JVM and does not count."""

        def measured(name: str, number: int) -> None:
            figures = contestants[name]()
            if number:
                self.stage.add(part, figures, name=name)

        self.stage.in_turn({name: partial(measured, name) for name in contestants}, rounds + 1)

    def lap(self, work: Work) -> Figures:
        """Perform the work once; return the figures of the process tree: this process, the JVM, its Python workers.

        Creating and removing the folder does not count.
        """
        folder = self.stage.new_folder()
        folder.mkdir()
        tree = ProcessTree(os.getpid())
        tree.reset_peak()
        used, begun = tree.usage().cpu_s, time.perf_counter()
        try:
            rows = work(folder)
            wall_s, after = time.perf_counter() - begun, tree.usage()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        cpu_s = after.cpu_s - used
        each = {"rows_per_s": rows / wall_s, "cpu_s_per_million": cpu_s / rows * 1e6}
        return each | {"wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": after.peak_rss_bytes}


def quiet(job: str) -> Progress:
    """Return a progress display that shows nothing."""
    return Progress(job, quiet=True, stream=io.StringIO())
