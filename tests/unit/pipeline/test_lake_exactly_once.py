"""A lake has each row exactly once, wherever its writer dies and whatever a power loss takes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from broker.pipeline.lake import table
from broker.pipeline.lake.lake import ArchiveNote, Lake
from broker.pipeline.lake.slot_copy import Copied, LakeTarget
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.seal_stream import StreamOffset
from broker.pipeline.source.slot_handle import SlotHandle
from tests.delta_log import messages_of, orphans_of, rows_of
from tests.slot_folders import SlotFolder, make_slots, numbered
from tests.unit.pipeline.dying_disk import Died, DyingDisk

DAY_MS = 86_400_000
QUERY = "0123456789abcdef"
SLOTS = 4
ROWS = 30


@pytest.fixture
def folder(tmp_path: Path) -> SlotFolder:
    """Provide four slots of a tap; the second has a damaged row, the third passes midnight."""
    made = make_slots(tmp_path / "store", [list(numbered(ROWS, start=ROWS * at)) for at in range(SLOTS)])
    made.damage(2)
    return made


def handles(folder: SlotFolder) -> list[SlotHandle]:
    """Return all slots."""
    return [SlotHandle.of(folder.store, seal) for seal in folder.view.seals]


def archive(path: Path, folder: SlotFolder, disk: DyingDisk) -> None:
    """Archive from the lake's position on: for each batch the tasks and the commit, and a compaction.

    A batch has two slots and one task per slot.
    """
    lake = Lake(path, create=True, disk=disk)  # each run repairs the lake first
    note = lake.note("archive")
    if note is None:
        note = ArchiveNote(QUERY, None, (), {}, StreamOffset(folder.store, 0))
        lake.write_note("archive", note)
    at = lake.position(note) or note.start
    target = LakeTarget(lake.place, QUERY, str(folder.path), disk=disk)
    found = [slot for slot in handles(folder) if slot.seal > at.seal]
    for first in range(0, len(found), 2):
        slots = found[first : first + 2]
        copied = sum((target.copy([slot]) for slot in slots), Copied())
        lake.commit(LakeBatch(QUERY, slots[-1].seal, "", copied))
        Lake(path, disk=disk).compact(1 << 20)


def check(path: Path, folder: SlotFolder) -> None:
    """Assert that each row exists once by the log and by `deltalake`, and that a vacuum leaves no orphan."""
    lake = Lake(path)
    wanted = [message_id for seal in folder.view.seals for message_id in range(seal.first, seal.end)]
    damaged = folder.view.seals[1].first
    whole = [message_id for message_id in wanted if message_id != damaged]
    found = lake.message_table.load().to_pyarrow_table(columns=["offset"]).column("offset").to_pylist()
    assert messages_of(path) == sorted(found) == whole
    assert [row["offset"] for row in rows_of(path / "bad")] == [damaged]
    assert lake.archived(folder.store) == {("/", "audit"): {"": SLOTS}}
    for each in (lake.message_table, lake.bad_table):
        each.load().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert not orphans_of(each.folder)
    assert messages_of(path) == whole


def calls_of_a_whole_run(tmp_path: Path, folder: SlotFolder) -> int:
    """Return the number of changing file calls in a run without a death."""
    disk = DyingDisk()
    archive(tmp_path / "whole", folder, disk)
    check(tmp_path / "whole", folder)
    return disk.calls


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(
    ("power", "step"),
    [
        pytest.param(False, 7, id="killed"),
        pytest.param(True, 5, id="power loss"),
        pytest.param(True, 1, id="power loss at every call", marks=pytest.mark.torture),
    ],
)
def test_a_writer_that_dies_at_any_file_call_leaves_each_row_once(
    tmp_path: Path, folder: SlotFolder, power: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer dies at the n-th file call, dies again, then finishes: each row exists once, without orphans.

    A power loss may lose nothing, which is the case of a kill.
    """
    monkeypatch.setattr(table, "CHECKPOINT_EVERY", 2)
    random = Random(4711)
    calls = calls_of_a_whole_run(tmp_path, folder)
    assert calls > 40
    for dies_at in range(0, calls, step):
        lake, durable = tmp_path / f"lake{dies_at}", set[Path]()
        for attempt, life in enumerate((dies_at, random.randrange(calls), None)):
            disk = DyingDisk(life, durable)
            try:
                archive(lake, folder, disk)
            except Died:
                assert attempt < 2
                if power:
                    disk.lose_power(random, lake)
            else:
                break
        check(lake, folder)
