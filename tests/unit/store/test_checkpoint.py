"""Checkpoints: written whole, read back equal, the newest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.slots.redeliveries import ReturnRun
from broker.store.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    QueueState,
    SlotState,
    decode_checkpoint,
    encode_checkpoint,
)
from broker.store.damage import Finding
from broker.store.memory_files import MemoryFiles

FOLDER = Path("/store")
FULL = Checkpoint(
    5 << 32 | 700,
    True,
    [{"change": "queue_declared", "name": "ü"}],
    [
        QueueState(
            1,
            2001,
            [SlotState(1, 1001, b"\xff\x01", [ReturnRun(3, 9, 2, 1)], {4: 10, 1 << 31: 1}, 99), SlotState(1001, 2001)],
        ),
        QueueState(9, 1),
    ],
    12,
)


def new_folder(files: MemoryFiles) -> CheckpointFolder:
    """Return the checkpoints of a folder as a new process reads them."""
    files.make_folder(FOLDER)
    return CheckpointFolder(files, FOLDER)


@pytest.fixture
def folder(files: MemoryFiles) -> CheckpointFolder:
    """Provide an empty folder."""
    return new_folder(files)


def test_a_checkpoint_comes_back() -> None:
    """Every part of a checkpoint is read as written, including whether it was synced."""
    assert decode_checkpoint(encode_checkpoint(FULL, synced=True), FOLDER / "checkpoint-1") == (FULL, True)
    assert decode_checkpoint(encode_checkpoint(FULL, synced=False), FOLDER / "checkpoint-1")[1] is False


@pytest.mark.parametrize(("queues", "slots"), [(20_000, 0), (20_000, 1), (1, 20_000)])
def test_a_checkpoint_is_encoded_in_slices(queues: int, slots: int) -> None:
    """The loop runs on while a thread encodes many queues, or one with many slots: 500 of either at once."""
    states = [QueueState(number, 9, [SlotState(1, 9) for _ in range(slots)]) for number in range(queues)]
    rests: list[int] = []
    checkpoint = Checkpoint(7, False, [], states, queues)
    block = encode_checkpoint(checkpoint, synced=True, between=lambda: rests.append(1))
    assert len(rests) >= (queues + queues * slots) // 501
    assert decode_checkpoint(block, FOLDER / "checkpoint-1")[0].queues == states


def test_a_cut_checkpoint_is_none() -> None:
    """A checkpoint that is cut anywhere is refused."""
    block = encode_checkpoint(FULL, synced=True)
    for cut in range(len(block)):
        with pytest.raises(ValueError, match=r".+"):
            decode_checkpoint(block[:cut], FOLDER / "checkpoint-1")


def test_the_newest_whole_one_counts(files: MemoryFiles, folder: CheckpointFolder) -> None:
    """The newest is read; if it is damaged, that is reported and the one before is read; older ones are removed."""
    for position in (1, 2, 3):
        folder.write(Checkpoint(position, False, [], [], 1), sync=True)
    assert files.list(FOLDER) == ["checkpoint-0000000002", "checkpoint-0000000003"]
    findings: list[Finding] = []
    found = new_folder(files).read(findings)
    assert found is not None
    assert (found[0].position, findings) == (3, [])
    files.contents[FOLDER / "checkpoint-0000000003"].block[20] ^= 1
    found = new_folder(files).read(findings)
    assert found is not None
    assert found[0].position == 2
    assert [finding.event for finding in findings] == ["store.checkpoint_skipped"]
    assert new_folder(MemoryFiles()).read([]) is None
