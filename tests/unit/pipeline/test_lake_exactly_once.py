"""A lake has each row once, wherever its writer died and whatever the power took."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from broker.pipeline.lake import Lake, manifest
from broker.pipeline.lake.bad_share import BadShare
from broker.pipeline.lake.entry import LakeFile
from broker.pipeline.lake.lake_format import LakeTarget, slot_rows
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.slot_view import open_slot
from tests.slot_folders import SlotFolder, make_slots, numbered
from tests.unit.pipeline.dying_disk import Died, DyingDisk

DAY_MS = 86_400_000
QUERY = "0123456789abcdef"
SLOTS = 4
ROWS = 30


def broken(folder: SlotFolder, seal: int) -> None:
    """Change the last byte of the first body of a slot file."""
    path = folder.slot_path(seal)
    block = bytearray(path.read_bytes())
    at = block.index(b"....")
    block[at] ^= 1
    path.write_bytes(block)


@pytest.fixture
def folder(tmp_path: Path) -> SlotFolder:
    """Four slots of a tap; the second has a row that is damaged, the third goes over midnight."""
    made = make_slots(tmp_path / "store", [list(numbered(ROWS, start=ROWS * at)) for at in range(SLOTS)])
    broken(made, 2)
    return made


def handles(folder: SlotFolder) -> list[SlotHandle]:
    """Return all slots."""
    return [SlotHandle.of(folder.store, seal) for seal in folder.view.seals]


def target(lake: Path, folder: SlotFolder, disk: DyingDisk) -> LakeTarget:
    """Return the sink as Spark makes it for tasks and commits."""
    Lake(lake, create=True, disk=disk)
    return LakeTarget(
        lake=str(lake),
        slots=None,
        query=QUERY,
        max_bad=BadShare.parse("1"),
        disk=disk,
        open_slot=lambda handle: open_slot(folder.slot_path(handle.seal).read_bytes(), handle.crc),
    )


def archive(lake: Path, folder: SlotFolder, disk: DyingDisk, committed: set[int]) -> None:
    """Do what Spark does: of each batch that it has not noted as committed the tasks, then the commit, then the note.

    A batch is two slots, a task one of them.
    """
    found = handles(folder)
    for batch in range(SLOTS // 2):
        if batch not in committed:
            sink = target(lake, folder, disk)
            sink.commit([sink.write(iter([slot_rows([one])])) for one in found[2 * batch : 2 * batch + 2]], batch)
            committed.add(batch)


def rows_of(lake: Lake, files: list[LakeFile]) -> list[int]:
    """Return the message ids in files, sorted."""
    found: list[int] = []
    for file in files:
        rows = pq.read_table(lake.message_table.data / file.path, columns=["offset"]).column("offset").to_pylist()
        assert len(rows) == file.rows
        found += rows
    return sorted(found)


def on_disk(lake: Lake) -> set[str]:
    """Return the files that are there, whatever the log says."""
    data = lake.message_table.data
    return {path.relative_to(data).as_posix() for path in data.rglob("*.parquet")}


def check(lake_path: Path, folder: SlotFolder) -> None:
    """Assert that each row is there once, and after a sweep no file more than the log has."""
    lake = Lake(lake_path)
    wanted = [message_id for seal in folder.view.seals for message_id in range(seal.first, seal.end)]
    damaged = folder.view.seals[1].first
    assert rows_of(lake, lake.files()) == [message_id for message_id in wanted if message_id != damaged]
    bad = lake.bad_table.files()
    assert sum(pq.read_table(lake.bad_table.data / file.path).num_rows for file in bad) == 1
    assert lake.archived(folder.store) == {("/", "audit"): {"": SLOTS}}
    lake.message_table.sweep(own=QUERY)
    lake.bad_table.sweep(own=QUERY)
    assert on_disk(lake) == {file.path for file in lake.files()}
    assert len(list(lake.bad_table.data.rglob("*.parquet"))) == len(bad)


def calls_of_a_whole_run(tmp_path: Path, folder: SlotFolder) -> int:
    """Return how many file calls change the disk when nobody dies."""
    disk = DyingDisk()
    archive(tmp_path / "whole", folder, disk, set())
    check(tmp_path / "whole", folder)
    return disk.calls


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(("power", "step"), [(False, 3), (True, 1)], ids=["killed", "power loss"])
def test_a_writer_that_dies_at_any_file_call_leaves_each_row_once(
    tmp_path: Path, folder: SlotFolder, power: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead at the n-th file call, then once more, then through: each row once, orphans are swept.

    A power loss may take nothing, so that it is a kill as well.
    """
    monkeypatch.setattr(manifest, "SNAPSHOT_EVERY", 1)
    random = Random(4711)
    calls = calls_of_a_whole_run(tmp_path, folder)
    assert calls > 40
    for dies_at in range(0, calls, step):
        lake, committed = tmp_path / f"lake{dies_at}", set[int]()
        for attempt, life in enumerate((dies_at, random.randrange(calls), None)):
            disk = DyingDisk(life)
            try:
                archive(lake, folder, disk, committed)
            except Died:
                assert attempt < 2
                if power:
                    disk.lose_power(random)
            else:
                break
        check(lake, folder)
