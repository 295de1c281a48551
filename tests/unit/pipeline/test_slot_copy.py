"""Slots to Parquet: rows by date in id order, row groups with statistics, bad records in files of their own."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.pipeline.faults import LakeRefused, SlotMissing
from broker.pipeline.lake import slot_copy
from broker.pipeline.lake.archive_run import bad_limit
from broker.pipeline.lake.place import Disk
from broker.pipeline.lake.slot_copy import Copied, ParquetFile, SlotCopy
from broker.pipeline.options import instant_ms
from broker.pipeline.source import message_run
from broker.pipeline.source.catalog import open_catalog, open_handle
from broker.pipeline.source.schema import ARROW_SCHEMA
from broker.pipeline.source.slot_handle import SlotHandle
from tests.slot_folders import SlotFolder, TapMessage, content_header, numbered

SMAPS = Path("/proc/self/smaps")
MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15


def copied(folder: SlotFolder, lake: Path, *seals: int) -> Copied:
    """Copy all slots of a folder, or those named."""
    catalog = open_catalog(path=str(folder.path))
    with SlotCopy(Disk(), lake, "q", lambda handle: open_handle(catalog, handle)) as copy:
        found = [seal for seal in folder.view.seals if not seals or seal.seal in seals]
        copy.copy([SlotHandle.of(folder.store, seal) for seal in found])
        return copy.finish()


def rows_of(lake: Path, table: str, path: str) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return list(pq.read_table(lake / table / path, partitioning=None).to_pylist())


@pytest.fixture
def folder(tmp_path: Path) -> SlotFolder:
    """Provide an empty store."""
    return SlotFolder(tmp_path / "store")


def test_rows_go_to_the_day_on_which_they_came(folder: SlotFolder, tmp_path: Path) -> None:
    """A slot that passes midnight becomes two files; a clock that goes back keeps the id order."""
    times = [MIDNIGHT_MS - 2, MIDNIGHT_MS - 1, MIDNIGHT_MS, MIDNIGHT_MS - 1, MIDNIGHT_MS + 1]
    folder.add_slot("audit", [TapMessage(b"%d" % n, timestamp_ms=ms) for n, ms in enumerate(times)])
    done = copied(folder, tmp_path)
    stats = [json.loads(file.stats) for file in done.files]
    assert [(found["numRecords"], found["minValues"]["ts"], found["maxValues"]["ts"]) for found in stats] == [
        (3, "2023-11-14T23:59:59.998Z", "2023-11-14T23:59:59.999Z"),
        (2, "2023-11-15T00:00:00.000Z", "2023-11-15T00:00:00.001Z"),
    ]
    assert [file.date for file in done.files] == ["2023-11-14", "2023-11-15"]
    assert [[row["body"] for row in rows_of(tmp_path, "messages", file.path)] for file in done.files] == [
        [b"0", b"1", b"3"],
        [b"2", b"4"],
    ]
    names = ("vhost", "queue", "offset")
    assert [[found[side][name] for name in names] for found in stats for side in ("minValues", "maxValues")] == [
        ["/", "audit", 1], ["/", "audit", 4], ["/", "audit", 3], ["/", "audit", 5],
    ]  # fmt: skip
    assert (done.slots, done.rows, done.bad) == (1, 5, 0)
    assert done.seals == {(folder.store, "", "/", "audit"): (1, 1)}
    assert all(file.path.startswith(f"date={file.date}/q-") for file in done.files)


def test_a_row_group_ends_by_rows_or_by_bytes(
    folder: SlotFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups have the minimum and maximum of ids and keys; bodies have no statistics and no dictionary."""
    monkeypatch.setattr(slot_copy, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(message_run, "BATCH_MAX_ROWS", 50)
    for at in range(4):
        folder.add_slot("audit", numbered(50, start=50 * at))
    [file] = copied(folder, tmp_path / "rows").files
    data = tmp_path / "rows" / "messages"
    found = pq.ParquetFile(data / file.path).metadata
    assert [found.row_group(at).num_rows for at in range(found.num_row_groups)] == [100, 100]
    columns = {found.row_group(1).column(at).path_in_schema: found.row_group(1).column(at) for at in range(24)}
    assert (columns["offset"].statistics.min, columns["offset"].statistics.max) == (101, 200)
    assert columns["routing_key"].statistics.min == "k.0" and "RLE_DICTIONARY" in str(columns["routing_key"].encodings)
    assert columns["body"].statistics is None and "DICTIONARY" not in str(columns["body"].encodings)
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert pq.read_schema(data / file.path).equals(ARROW_SCHEMA)
    assert (data / file.path).stat().st_size == file.bytes

    monkeypatch.setattr(slot_copy, "ROW_GROUP_BYTES", 3_000_000)
    large = folder.add_slot(
        "large", [TapMessage(bytes(1_000_000), header=content_header(1_000_000)) for _ in range(20)]
    )
    [file] = copied(folder, tmp_path / "bytes", large.seal).files
    found = pq.ParquetFile(tmp_path / "bytes" / "messages" / file.path).metadata
    assert found.num_rows == 20 and found.num_row_groups > 1


def test_small_slots_are_decoded_together(folder: SlotFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of one message are not a batch each, whatever their taps; their rows are those of slots copied alone."""
    for at in range(120):
        header = content_header(3, content_type=f"t{at % 3}", headers={"n": at}) if at % 2 else None
        folder.add_slot(f"tap {at % 3}", [TapMessage(b"%03d" % at, f"k.{at}", header=header)])
    folder.incarnation = "e" * 32
    folder.add_slot("tap 1", numbered(40))
    sizes: list[int] = []
    add = ParquetFile.add

    def counting(file: ParquetFile, batch: pa.RecordBatch) -> None:
        sizes.append(batch.num_rows)
        add(file, batch)

    def copied_rows(name: str) -> list[dict[str, Any]]:
        sizes.clear()
        done = copied(folder, tmp_path / name)
        assert (done.slots, done.rows, done.bad, len(done.seals)) == (121, 160, 0, 4)
        return [row for file in done.files for row in rows_of(tmp_path / name, "messages", file.path)]

    monkeypatch.setattr(ParquetFile, "add", counting)
    together = copied_rows("together")
    assert sizes == [160]
    monkeypatch.setattr(message_run, "GROUP_SLOTS", 1)
    assert copied_rows("alone") == together
    assert len(sizes) == 121
    assert {(row["queue"], row["seal"], row["slot"], row["incarnation"]) for row in together} == {
        (seal.queue, seal.seal, seal.first, seal.incarnation or None) for seal in folder.view.seals
    }


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells what is resident")
def test_a_large_slot_file_leaves_the_memory_of_a_task(folder: SlotFolder, tmp_path: Path) -> None:
    """No part of a mapped file stays resident after a check or a copy, and its rows can still be read."""
    seal = folder.add_slot("audit", [TapMessage(bytes(1 << 20)) for _ in range(17)])
    path = str(folder.slot_path(seal.seal))
    resident: list[int] = []

    def look() -> None:
        lines = SMAPS.read_text().splitlines()
        at = next(number for number, line in enumerate(lines) if line.endswith(path))
        resident.append(next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:")))

    catalog = open_catalog(path=str(folder.path))
    view = open_handle(catalog, SlotHandle.of(folder.store, seal))
    look()
    with SlotCopy(Disk(), tmp_path, "q", lambda _: view) as copy:
        copy.copy([SlotHandle.of(folder.store, seal)])
        look()
        assert copy.finish().rows == 17
    assert view.verify() == []
    look()
    assert resident[1] < 8_000 < resident[2], resident


def test_what_cannot_be_read_goes_aside_with_its_reason(folder: SlotFolder, tmp_path: Path) -> None:
    """A damaged row, or a slot with a damaged index, is put aside with its reason; the others are copied."""
    for at in range(3):
        folder.add_slot("audit", numbered(10, start=10 * at, body_bytes=40))
    for seal, mark in ((1, b"3" + b"." * 39), (2, b'"queue"')):
        folder.damage(seal, mark)
    done = copied(folder, tmp_path)
    assert (done.rows, done.bad, done.slots, *done.seals.values()) == (19, 11, 3, (1, 3))
    [file] = done.files
    assert [row["offset"] for row in rows_of(tmp_path, "messages", file.path)] == [
        1,
        2,
        3,
        *range(5, 11),
        *range(21, 31),
    ]
    [bad] = done.bad_files
    one, whole = rows_of(tmp_path, "bad", bad.path)
    assert (one["seal"], one["row"], one["offset"], one["rows"], one["reason"]) == (1, 3, 4, 1, "its checksum is wrong")
    assert one["raw"].endswith(b"2" + b"." * 39) and one["query"] == "q"
    assert (whole["seal"], whole["row"], whole["offset"], whole["rows"], whole["raw"]) == (2, None, 11, 10, None)
    assert "its meta is damaged" in whole["reason"]


def test_what_fails_leaves_no_file(folder: SlotFolder, tmp_path: Path) -> None:
    """A missing slot between two others fails the task, and the file of the first is deleted."""
    for at in range(3):
        folder.add_slot("audit", numbered(10, start=10 * at))
    folder.slot_path(2).unlink()
    with pytest.raises(SlotMissing):
        copied(folder, tmp_path)
    assert list((tmp_path / "messages").rglob("*.parquet")) == []


def test_a_full_disk_is_told_and_leaves_no_file(folder: SlotFolder, tmp_path: Path) -> None:
    """Closing the file fails too, which neither hides the cause nor keeps the file, so the disk does not stay full."""
    folder.add_slot("audit", numbered(10))
    catalog = open_catalog(path=str(folder.path))

    class FullFile(io.FileIO):
        def write(self, _block: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    class FullDisk(Disk):
        def create(self, path: Path) -> BinaryIO:
            return io.BufferedWriter(FullFile(path, "x"))

    def fill() -> None:
        with SlotCopy(FullDisk(), tmp_path, "q", lambda handle: open_handle(catalog, handle)) as copy:
            copy.copy([SlotHandle.of(folder.store, folder.view.seals[0])])
            copy.finish()

    with pytest.raises(OSError, match="No space left"):
        fill()
    assert list((tmp_path / "messages").rglob("*.parquet")) == []


@pytest.mark.parametrize(
    ("limit", "bad", "messages", "exceeded"),
    [
        ("0", 1, 1_000_000, True), ("0", 0, 1, False), ("5", 5, 6, False), ("5", 6, 1_000_000, True),
        ("0.1%", 10, 20, False), ("0.1%", 11, 20, True), ("0.1%", 1000, 1_000_000, False),
        ("0.1%", 1001, 1_000_000, True), ("0%", 1, 1_000_000, True), ("100%", 30, 30, False),
    ],
)  # fmt: skip
def test_a_limit_of_bad_messages(limit: str, bad: int, messages: int, exceeded: bool) -> None:
    """A limit is a number or a share; a share always allows ten, because ten are many percent of a small batch."""
    assert (bad > bad_limit(limit)(messages)) is exceeded


@pytest.mark.parametrize("text", ["", "x", "-1", "101%", "1.5", "0,1%", "1e3"])
def test_what_is_no_limit(text: str) -> None:
    """An invalid limit is refused with one line that shows a valid one."""
    with pytest.raises(LakeRefused, match=r"is neither a number of messages nor a share such as 0\.1%"):
        bad_limit(text)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2023-11-15", MIDNIGHT_MS), ("2023-11-15T00:00:00.001Z", MIDNIGHT_MS + 1),
        ("2023-11-15T01:00:00+01:00", MIDNIGHT_MS),
        ("7d", MIDNIGHT_MS - 7 * 86_400_000), ("90m", MIDNIGHT_MS - 5_400_000), ("0s", MIDNIGHT_MS),
    ],
)  # fmt: skip
def test_a_moment_is_a_date_a_time_or_how_long_ago(text: str, at_ms: int) -> None:
    """A moment is a date, a time or an age; without a zone it is UTC."""
    assert instant_ms(text, MIDNIGHT_MS) == at_ms


def test_what_is_no_moment() -> None:
    """An invalid moment is refused with one line that shows a valid one."""
    with pytest.raises(LakeRefused, match="'yesterday' is not a time such as 2026-11-20"):
        instant_ms("yesterday", 0)
