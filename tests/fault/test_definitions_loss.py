"""A file call for the definitions fails or is the last: the old or the new definitions remain."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from broker.store.damage import StoreFailed
from broker.store.definitions_file import DefinitionsFile
from tests.fault.faulty_files import FaultyFiles, PowerLost

FOLDER = Path("/srv/data")
LOSSES = range(30)
OLD = {"users": ["old"] * 200}  # more than one sector
NEW = {"users": ["new"] * 150}


def with_old(old: dict[str, Any] | None) -> FaultyFiles:
    """Return files with the old definitions on disk, or without any."""
    files = FaultyFiles(folder=FOLDER)
    if old is not None:
        DefinitionsFile(files, FOLDER).write(old)
    return files


def read(files: FaultyFiles) -> dict[str, Any] | None:
    """Return the definitions that a start reads."""
    return DefinitionsFile(files, FOLDER).read()


@pytest.mark.fault
@pytest.mark.parametrize("old", [OLD, None], ids=["second", "first"])
@pytest.mark.parametrize("accident", ["error", "power lost"])
@pytest.mark.parametrize("partial", [False, True])
def test_each_call_of_a_change(old: dict[str, Any] | None, accident: str, partial: bool) -> None:
    """A change that failed leaves the old or the new definitions; a change that returned leaves the new ones.

    What a start has read is on disk: a later power loss does not restore the other definitions.
    """
    for n in count(1):
        files = with_old(old)
        files.partial = partial
        if accident == "error":
            files.fail_at = files.calls + n
        else:
            files.lose_at = files.calls + n
        try:
            DefinitionsFile(files, FOLDER).write(NEW)
        except (StoreFailed, PowerLost):
            allowed = [old, NEW]
        else:
            allowed = [NEW]
        for after in (files.after_kill(), *map(files.after_loss, LOSSES)):
            found = read(after)
            assert found in allowed, f"call {n}"
            assert [read(after.after_loss(seed)) for seed in range(5)] == [found] * 5
        if allowed == [NEW]:
            break
    assert n > 5


@pytest.mark.fault
def test_a_change_after_a_failed_one() -> None:
    """A broker that continues after a failed change can make the next, which is on disk when it returns."""
    for n in count(1):
        files = with_old(OLD)
        files.fail_at = files.calls + n
        definitions = DefinitionsFile(files, FOLDER)
        try:
            definitions.write({"users": ["refused"] * 150})
        except StoreFailed:
            definitions.write(NEW)
            assert [read(files.after_loss(seed)) for seed in LOSSES] == [NEW] * len(LOSSES), f"call {n}"
        else:
            break
    assert n > 5


@pytest.mark.fault
def test_each_call_of_a_read() -> None:
    """A read that fails raises an error; it never treats unreadable definitions as missing ones."""
    for n in count(1):
        files = with_old(OLD)
        files.fail_at = files.calls + n
        try:
            assert read(files) == OLD
        except StoreFailed:
            assert files.failed
        else:
            break
    assert n > 3
