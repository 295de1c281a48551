"""A file call for the state of the overlay's leaf fails or is the last: no batch that was noted is lost or halved."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from broker.overlay_node import leaf_file
from broker.overlay_node.leaf_file import LeafFile, StoredLeaf
from broker.store.damage import StoreFailed
from tests.fault.faulty_files import FaultyFiles, PowerLost

FOLDER = Path("/srv/data")
LOSSES = range(8)
BATCHES = [
    ({f"{batch}.{number}": batch for number in range(40)}, [f"{batch - 1}.{n}" for n in range(39)])
    for batch in range(6)
]


def read(files: FaultyFiles) -> StoredLeaf:
    """Return what a start reads."""
    return LeafFile(files, FOLDER, "a").read()


def states() -> list[StoredLeaf]:
    """Return what is noted before the first batch and after each."""
    points: dict[str, int] = {}
    found = [StoredLeaf()]
    for time, (came, gone) in enumerate(BATCHES, 1):
        points = {binding: point for binding, point in points.items() if binding not in gone} | came
        found.append(StoredLeaf(time, points))
    return found


@pytest.mark.fault
@pytest.mark.parametrize("accident", ["error", "power lost"])
@pytest.mark.parametrize("partial", [False, True])
def test_each_call_of_several_batches(accident: str, partial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lines that are appended and with rewrites. What a start has read and written again is on disk."""
    monkeypatch.setattr(leaf_file, "GROWTH_MIN_BYTES", 1_000)
    known = states()
    for n in count(1):
        files = FaultyFiles(folder=FOLDER)
        files.partial = partial
        if accident == "error":
            files.fail_at = n
        else:
            files.lose_at = n
        file, done = LeafFile(files, FOLDER, "a"), 0
        try:
            for time, (came, gone) in enumerate(BATCHES, 1):
                file.write(time, came, gone)
                done += 1
        except (StoreFailed, PowerLost):
            allowed = known[done : done + 2]
        else:
            allowed = known[-1:]
        for after in (files.after_kill(), *map(files.after_loss, LOSSES)):
            found = read(after)
            assert found in allowed, f"call {n}"
            LeafFile(after, FOLDER, "a").write(found.time_bound, found.start_points, ())
            assert [read(after.after_loss(seed)) for seed in range(3)] == [found] * 3
        if done == len(BATCHES):
            break
    assert n > 20
