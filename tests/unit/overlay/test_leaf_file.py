"""The file with what a leaf must find again."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.overlay_node.leaf_file import LeafFile, StoredLeaf
from broker.slot_files.seal_log import encode_line
from broker.store.damage import CorruptFile, NewerFormat
from broker.store.memory_files import MemoryFiles
from tests.watched_files import WatchedFiles

FOLDER = Path("/data")


def files_with(*lines: bytes) -> MemoryFiles:
    """Return a data folder whose leaf file has lines."""
    files = MemoryFiles()
    files.make_folder(FOLDER)
    if lines:
        files.open(FOLDER / "overlay", create=True).write_at(0, b"".join(lines))
    return files


def ids(first: int, end: int) -> dict[str, int]:
    """Return start points of bindings with ids as long as those of a broker."""
    return {f"/\0orders\0topic\0q17\0region.{number:09}.#\0": 1_000 + number for number in range(first, end)}


def test_what_was_noted_is_found() -> None:
    """Batches add up; the first one of a start replaces what the file had; another leaf keeps only the time."""
    files = files_with()
    assert LeafFile(files, FOLDER, "a").read() == StoredLeaf()
    file = LeafFile(files, FOLDER, "a")
    file.write(1_024, {"one": 3, "two": 4}, ())
    file.write(1_024, {"three": 5, "two": 6}, ["one", "nobody"])
    assert LeafFile(files, FOLDER, "a").read() == StoredLeaf(1_024, {"two": 6, "three": 5})
    file.write(2_048, {}, ["two"])
    file.close()
    assert LeafFile(files, FOLDER, "a").read() == StoredLeaf(2_048, {"three": 5})
    assert LeafFile(files, FOLDER, "b").read() == StoredLeaf(2_048, {})
    LeafFile(files, FOLDER, "a").write(3_000, {"four": 7}, ())
    assert LeafFile(files, FOLDER, "a").read() == StoredLeaf(3_000, {"four": 7})


def test_a_batch_costs_itself_however_many_bindings_there_are() -> None:
    """One more binding of 100,000 is one line; all of them in small batches cost a few times their bytes."""
    files = WatchedFiles(FOLDER)
    file = LeafFile(files, FOLDER, "a")
    for first in range(0, 100_000, 2_000):
        file.write(1_024, ids(first, first + 2_000), ())
    whole = files.size(file.path)
    assert files.written_bytes < 4 * whole
    files.written_bytes = 0
    for number in range(100):
        file.write(1_024, ids(100_000 + number, 100_001 + number), ())
    assert files.written_bytes < 100 * 200


def test_bindings_that_come_and_go_do_not_make_the_file_grow() -> None:
    """It is rewritten once it has doubled, with the rest."""
    files = files_with()
    file = LeafFile(files, FOLDER, "a")
    file.write(1_024, ids(0, 100), ())
    for number in range(100, 5_000):
        file.write(1_024, ids(number, number + 1), list(ids(number - 100, number - 99)))
        assert files.size(file.path) < 100_000
    assert LeafFile(files, FOLDER, "a").read() == StoredLeaf(1_024, ids(4_900, 5_000))


HEAD = encode_line("leaf", {"format": 1, "leaf": "a"})
CHANGE = encode_line("change", {"time_bound": 5, "points": {"one": 3}, "gone": []})
LAST = encode_line("change", {"time_bound": 9, "points": {"two": 4}, "gone": ["one"]})


def test_a_torn_last_line_is_cut() -> None:
    """Nothing relies on it, wherever it was torn. The operator is told."""
    for size_bytes in range(len(LAST)):
        with capture_logs() as logs:
            file = LeafFile(files_with(HEAD, CHANGE, LAST[:size_bytes]), FOLDER, "a")
            assert file.read() == StoredLeaf(5, {"one": 3})
        cut = [(line["event"], line["path"], line["bytes"]) for line in logs]
        assert cut == ([("overlay.tail_cut", "/data/overlay", size_bytes)] if size_bytes else [])


@pytest.mark.parametrize(
    "lines",
    [
        (b"anything",),
        (b"anything\n",),
        (CHANGE,),
        (HEAD, b"x" + CHANGE, LAST),
        (HEAD, encode_line("change", {"points": {}, "gone": []})),
        (HEAD, encode_line("change", {"time_bound": 1, "points": 7, "gone": []})),
    ],
)
def test_damage_is_refused(lines: tuple[bytes, ...]) -> None:
    """A broker that forgets start points would lose messages."""
    with pytest.raises(CorruptFile, match="not the state of an overlay's leaf"):
        LeafFile(files_with(*lines), FOLDER, "a").read()


def test_a_newer_file_is_refused() -> None:
    """Nothing is guessed."""
    with pytest.raises(NewerFormat):
        LeafFile(files_with(encode_line("leaf", {"format": 2, "leaf": "a"})), FOLDER, "a").read()
