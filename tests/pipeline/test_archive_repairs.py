"""An archive after a power loss or after another archive: it continues after the lake's last rows, and says so."""

from __future__ import annotations

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


@pytest.mark.parametrize("stop_at", ["files", "entry"])
def test_a_torn_entry_is_written_again(tmp_path: Path, stop_at: str) -> None:
    """A power loss tore the last entry of the log, or came before it: its batch follows, and no row is doubled."""
    folder, lake = make_slots(tmp_path / "data", [list(numbered(ROWS))]), tmp_path / "lake"
    archive(lake, str(folder.path))
    end = grow(folder, 2)
    archive(lake, str(folder.path), stop_at=stop_at)
    entries = sorted((lake / "messages" / "_delta_log").glob("*.json"))
    if stop_at == "entry":
        entries[-1].write_bytes(entries[-1].read_bytes()[:50])
    found = archive(lake, str(folder.path))
    assert (found["rows"], found["seal"]) == (2 * ROWS, 3)
    assert messages_of(lake) == list(range(1, end))
    assert archive(lake, str(folder.path))["batches"] == 0


def test_an_archive_that_another_one_blocked_takes_over(tmp_path: Path) -> None:
    """The error names the option --take-over, with which the archive continues after the other one's rows."""
    folder, lake = make_slots(tmp_path / "data", [list(numbered(ROWS))]), tmp_path / "lake"
    archive(lake, str(folder.path))
    grow(folder)
    archive(lake, str(folder.path), "other")
    end = grow(folder)
    with pytest.raises(LakeRefused, match=r"up to seal 2 already, .* --take-over continues after"):
        archive(lake, str(folder.path))
    assert archive(lake, str(folder.path), take_over=True)["rows"] == ROWS
    assert messages_of(lake) == list(range(1, end))
    end = grow(folder)
    assert archive(lake, str(folder.path), take_over=True)["rows"] == ROWS
    assert messages_of(lake) == list(range(1, end))
