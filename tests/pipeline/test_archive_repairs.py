"""An archive after a power loss or after another archive: it continues after the lake's last rows, and says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.pipeline.faults import LakeRefused
from tests.delta_log import messages_of
from tests.slot_folders import SlotFolder, make_slots, numbered

pytest.importorskip("pyspark")

from tests.pipeline.without_spark import archive

ROWS = 10


def grow(folder: SlotFolder, slots: int = 1) -> int:
    """Add slots, and return the new number of rows."""
    for _ in range(slots):
        folder.add_slot("audit", numbered(ROWS))
    return folder.view.seals[-1].end


def lose(name: str) -> Callable[[Path], object]:
    """Return a function that removes a file of a checkpoint."""
    return lambda folder: (folder / name).unlink()


def cut(name: str, size: int = 0) -> Callable[[Path], object]:
    """Return a function that truncates a file of a checkpoint to its first bytes."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


@pytest.mark.parametrize("stop_at", ["", "entry"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut("offsets/1"), "offsets/1 cannot be read"),
        (cut("offsets/1", 20), "offsets/1 cannot be read"),
        (lose("offsets/1"), r"offsets/1 (is lost|cannot be read)"),
    ],
)
def test_an_offset_that_a_power_loss_took_is_found_in_the_table(
    tmp_path: Path, stop_at: str, damage: Callable[[Path], object], said: str
) -> None:
    """The entry was synced and Spark's offset was not, with or without Spark's commit: no row is doubled."""
    folder, lake = make_slots(tmp_path / "data", [list(numbered(ROWS))]), tmp_path / "lake"
    archive(lake, str(folder.path))
    grow(folder, 2)
    archive(lake, str(folder.path), stop_at=stop_at)
    damage(lake / "_checkpoints" / "archive")
    end = grow(folder)
    found = archive(lake, str(folder.path))
    assert (found["rows"], found["seal"]) == (ROWS, 4)
    assert re.search(rf"as by a power loss \({said}\): the archive goes on behind what the lake has", found["said"][0])
    assert messages_of(lake) == list(range(1, end))
    again = archive(lake, str(folder.path))
    assert (again["batches"], [line for line in again["said"] if "damaged" in line]) == (0, [])


def test_an_empty_note_of_a_commit_is_a_lost_one(tmp_path: Path) -> None:
    """Spark would refuse an empty commit file for ever; the archive treats it as a lost one."""
    folder, lake = make_slots(tmp_path / "data", [list(numbered(ROWS))]), tmp_path / "lake"
    archive(lake, str(folder.path))
    cut("commits/0")(lake / "_checkpoints" / "archive")
    end = grow(folder)
    found = archive(lake, str(folder.path))
    assert found["rows"] == ROWS
    assert "(commits/0 is empty)" in found["said"][0]
    assert messages_of(lake) == list(range(1, end))


def test_an_archive_that_another_one_blocked_takes_over(tmp_path: Path) -> None:
    """The error names the option --take-over, with which the archive continues after the other one's rows."""
    folder, lake = make_slots(tmp_path / "data", [list(numbered(ROWS))]), tmp_path / "lake"
    archive(lake, str(folder.path))
    grow(folder)
    archive(lake, str(folder.path), "other")
    end = grow(folder)
    with pytest.raises(LakeRefused, match=r"up to seal 2 already, .* --take-over goes on behind"):
        archive(lake, str(folder.path))
    assert archive(lake, str(folder.path), take_over=True)["rows"] == ROWS
    assert messages_of(lake) == list(range(1, end))
    end = grow(folder)
    assert archive(lake, str(folder.path), take_over=True)["rows"] == ROWS
    assert messages_of(lake) == list(range(1, end))
    assert len([path for path in (lake / "_checkpoints").iterdir() if ".old-" in path.name]) == 1
