"""An archive into a bucket: Spark's tasks write to it and read from it, without an extra jar."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import slotmq

pytest.importorskip("moto")

from tests.pipeline.test_archive import archive
from tests.slot_folders import make_slots, numbered
from tests.unit.pipeline.bucket import bucket

ROWS = 50


def test_an_archive_into_a_bucket_is_read_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is stored once, and the archive continues from another machine: its position is in the bucket."""
    place = "s3://attic/lake"
    folder = make_slots(tmp_path / "store", [list(numbered(ROWS)), list(numbered(ROWS, start=ROWS))])
    with bucket("attic") as options:
        for name, value in options.items():
            monkeypatch.setenv(name, value)
        notes = []
        for cache in ("first", "second"):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
            done = archive(spark, place, path=str(folder.path))
            assert done.values["rows"] == (2 * ROWS if cache == "first" else ROWS)
            assert [path.name[:8] for path in (tmp_path / cache / "slotmq" / "lakes").iterdir()] == ["attic%2F"]
            notes.append(slotmq.Lake(place).note("archive"))
            folder.add_slot("audit", numbered(ROWS, start=2 * ROWS))
        assert notes[0] is not None and notes[0] == notes[1]
        frame = slotmq.lake(spark, place)
        rows = frame.orderBy("offset").collect()
        assert [(row.offset, row.queue, row.store) for row in rows] == [
            (n, "audit", folder.store) for n in range(1, 3 * ROWS + 1)
        ]
        assert {bytes(row.body)[:1] for row in rows} == {b"0", *(b"%d" % n for n in range(1, 10))}
        assert slotmq.lake(spark, place, columns=["queue"]).columns == ["queue"]
        assert slotmq.lake(spark, place, version=0).count() == 0
        assert slotmq.Lake(place).bad(spark).count() == 0
