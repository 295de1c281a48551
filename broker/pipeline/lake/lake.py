"""A lake: the folder in which an archive keeps messages, and what reads them.

_meta.json                  what the folder is, and its format
messages/_log, data         the messages, as `slotmq` gives them
bad/_log, data              what could not be read, with the reason
_checkpoints/<cursor>       where an archive stands
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import LakeFile
from broker.pipeline.lake.instant import Instant, instant_ms
from broker.pipeline.lake.manifest import WRITING, now_ms
from broker.pipeline.lake.table import Table
from broker.pipeline.local_path import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LAKE_FORMAT", "Lake", "spark_setting"]

LAKE_FORMAT: Final = 1  # of the folder; entries have one of their own
META: Final = "_meta.json"
KIND: Final = "slotmq-lake"
LISTING_THRESHOLD: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
GLOB: Final = re.compile(r"[][{}*?\\]")  # what Spark takes for a pattern in a path
LISTED_BY_DRIVER: Final = 10_000  # a job that looks at so many files costs more than to look at them here


class Lake:
    """A lake that is there; `create` makes one.

    Raises: LakeRefused when it is none, of a later format, or at a URL.
    """

    def __init__(
        self, path: str | Path, *, create: bool = False, disk: Disk | None = None, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self.path = local_path(path).absolute()
        self._disk = disk or Disk()
        self._clock_ms = clock_ms
        if create:
            self._create()
        self._check_meta()
        self.message_table = Table(self.path / "messages", self._disk, clock_ms=clock_ms)
        self.bad_table = Table(self.path / "bad", self._disk, clock_ms=clock_ms)

    def _create(self) -> None:
        try:
            names = self._disk.list(self.path)
        except NotADirectoryError:
            raise LakeRefused(f"{self.path} is no lake but a file") from None
        if META in names:
            return
        if [name for name in names if not name.startswith(WRITING)]:
            raise LakeRefused(f"{self.path} is no lake, and not empty")
        self._disk.make_folder(self.path)
        writing = self.path / f"{WRITING}{uuid.uuid4().hex}"
        with self._disk.create(writing) as file:
            file.write(json.dumps({"kind": KIND, "format": LAKE_FORMAT}).encode())
            self._disk.sync(file)
        self._disk.link(writing, self.path / META)
        self._disk.remove(writing)
        self._disk.sync_folder(self.path)

    def _check_meta(self) -> None:
        try:
            meta = json.loads(self._disk.read(self.path / META))
            kind, version = meta["kind"], int(meta["format"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LakeRefused(f"{self.path} is no lake: it has no {META} that says so") from error
        if kind != KIND:
            raise LakeRefused(f"{self.path} is no lake of messages but a {kind!r}")
        if version > LAKE_FORMAT:
            raise LakeRefused(f"{self.path} is of format {version}, this version reads up to {LAKE_FORMAT}")

    def files(self, since: Instant = None, until: Instant = None) -> list[LakeFile]:
        """Return the files that may have messages of since <= ts < until."""
        return self.message_table.files(*self._bounds(since, until))

    def archived(self, store: str) -> dict[tuple[str, str], dict[str | None, int]]:
        """Return of each tap of a store, by vhost and name, the last seal in the lake of each start of the broker."""
        found: dict[tuple[str, str], dict[str | None, int]] = {}
        for (of, vhost, tap, incarnation), seal in self.message_table.manifest.state().archived.items():
            if of == store:
                found.setdefault((vhost, tap), {})[incarnation] = seal
        return found

    def messages(
        self, spark: SparkSession, since: Instant = None, until: Instant = None, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """Return the messages of since <= ts < until with the columns of this version; those of older files are null.

        Cost: files of other days are not opened. The frame is the lake of this moment, whatever is added.
        """
        from pyspark.sql import functions

        from broker.pipeline.source.schema import ARROW_SCHEMA, COLUMNS, ddl_of

        first_ms, end_ms = self._bounds(since, until)
        wanted = ddl_of(ARROW_SCHEMA, list(dict.fromkeys([*(columns or COLUMNS), "ts"])))
        frame = self.frame(spark, self.message_table, self.message_table.files(first_ms, end_ms), wanted)
        if first_ms is not None:
            frame = frame.where(functions.col("ts") >= functions.lit(_moment(first_ms)))
        if end_ms is not None:
            frame = frame.where(functions.col("ts") < functions.lit(_moment(end_ms)))
        return frame if columns is None else frame.select(*columns)

    def bad(self, spark: SparkSession) -> DataFrame:
        """Return the records that could not be read, each with the reason and its bytes."""
        from broker.pipeline.lake.bad_record import BAD_DDL

        return self.frame(spark, self.bad_table, self.bad_table.files(), BAD_DDL)

    def frame(self, spark: SparkSession, table: Table, files: Sequence[LakeFile], ddl: str) -> DataFrame:
        """Return what is in files of a table, as columns of a schema."""
        if not files:
            return spark.createDataFrame([], ddl)
        paths = [GLOB.sub(r"\\\g<0>", str(table.data / file.path)) for file in files]
        with spark_setting(spark, LISTING_THRESHOLD, str(LISTED_BY_DRIVER)):
            return spark.read.schema(ddl).parquet(*paths)

    def _bounds(self, since: Instant, until: Instant) -> tuple[int | None, int | None]:
        now = self._clock_ms()
        return instant_ms(since, now), instant_ms(until, now)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


@contextmanager
def spark_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Has a setting of a session for a while."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(name, before)
