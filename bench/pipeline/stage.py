"""The parts that a run shares: the plan, one Spark session, the slots and the lake, and the progress display."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.pipeline.contest import Lap, Work, contest, line, row
from bench.pipeline.plan import Plan
from bench.pipeline.show import Show
from bench.pipeline.slot_store import SlotStore
from bench.topics import workload
from broker.pipeline.jobs.archive import ArchiveOptions, run_archive
from broker.pipeline.lake import Lake
from broker.pipeline.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CURSOR = "bench"


class WrongResult(Exception):
    """A measured program did the wrong thing, which makes its figures worthless."""


class Stage:
    """The circumstances of a run. Units: no long step begins after the `deadline` of the monotonic clock."""

    def __init__(self, plan: Plan, folder: Path, show: Show, deadline: float = inf) -> None:
        self.plan = plan
        self.folder = folder
        self.show = show
        self.deadline = deadline

    def late(self) -> bool:
        """Return whether the deadline forbids another long step."""
        return time.monotonic() > self.deadline

    @cached_property
    def spark(self) -> SparkSession:
        """The session that all contestants share."""
        from broker.pipeline.spark.session import session

        return session(conf={"spark.driver.memory": self.plan.driver_memory}, app="slotmq-bench")

    @cached_property
    def keys(self) -> list[str]:
        """The routing keys of all messages."""
        return workload.keys(self.plan.keys)

    def new_store(self, name: str) -> SlotStore:
        """Return an empty data folder, named as `brokers.slotmq` names one."""
        plan = self.plan
        path = self.folder / name / "slotmq"
        now_ms = time.time_ns() // 1_000_000
        return SlotStore(path, self.keys, body_bytes=plan.body_bytes, slot_rows=plan.slot_rows, now_ms=now_ms)

    @cached_property
    def slots(self) -> Path:
        """The data folder with the plan's rows in slots."""
        self.show.tell(f"making {self.plan.rows:,} messages in slots of {self.plan.slot_rows:,}")
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
        """Return the Parquet files of the lake."""
        lake = Lake(self.lake)
        return [str(lake.message_table.folder / file.path) for file in lake.files()]

    def race(self, part: str, contestants: Mapping[str, Work], rounds: int) -> list[dict[str, Any]]:
        """Return the figures of contestants that run in turn."""
        self.show.begin(part, (rounds + 1) * len(contestants))

        def told(name: str, found: Lap | None) -> None:
            self.show.step(f"{part}: {name}" + ("" if found is None else f" {found.rows_per_s:,.0f} rows/s"))

        laps = contest(contestants, rounds, self.folder / "laps", told)
        rows = [row(name, own) for name, own in laps.items()]
        for one in rows:
            self.show.tell(f"{part:8} {line(one)}")
        return rows


def quiet(job: str) -> Progress:
    """Return a progress that shows nothing."""
    return Progress(job, quiet=True, stream=io.StringIO())
