"""A vhost is removed, and any file call is the last: afterwards all of the vhost is there, or nothing."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from broker.store.damage import StoreFailed
from broker.store.data_folder import DataFolder
from broker.store.record import TARGET, encode_message, encode_route
from broker.store.store import VhostStore
from tests.fault.faulty_files import FaultyFiles, PowerLost
from tests.fault.test_torn_tail import commit

PATH = Path("/srv/data")
ROUTE = encode_route("x", "k")
MESSAGES = 40
LOSSES = range(12)
LONG = "ü" * 127


def open_store(folder: DataFolder, name: str) -> tuple[VhostStore, int]:
    """Open a vhost's store; return the number of its messages."""
    store, recovered = VhostStore.open(folder.files, folder.vhost_folder(name), segment_bytes=1000, sync=True)
    return store, recovered.messages


def new_folder(doomed: str) -> DataFolder:
    """Return a data folder with two vhosts, forty messages in each."""
    folder = DataFolder.open(FaultyFiles(folder=PATH.parent), PATH)
    for name in ("/", doomed):
        store, _ = open_store(folder, name)
        for message_id in range(1, MESSAGES + 1):
            target = TARGET.pack(1, message_id)
            store.log.append(encode_message(store.log.synced, 1, 1, ROUTE, b"h", b"body", target))
        commit(store)
        store.close()
    return folder


def check(files: FaultyFiles, doomed: str) -> bool:
    """Return whether the doomed vhost exists; it must be complete, or have left nothing."""
    folder = DataFolder.open(files, PATH)
    names = folder.list_vhosts()
    assert "/" in names
    assert set(names) <= {"/", doomed}
    assert len(files.list(PATH / "vhosts")) == len(names)
    assert [open_store(folder, name)[1] for name in names] == [MESSAGES] * len(names)
    return doomed in names


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("accident", ["error", "power lost"])
@pytest.mark.parametrize("doomed", ["doomed", LONG], ids=["short", "long"])
def test_each_call_of_a_removal(doomed: str, accident: str) -> None:
    """Whichever call is the last, a start has the vhost with every message or not at all, and the others unchanged."""
    outcomes = set()
    for n in count(1):
        folder = new_folder(doomed)
        files = folder.files
        assert isinstance(files, FaultyFiles)
        if accident == "error":
            files.fail_at = files.calls + n
        else:
            files.lose_at = files.calls + n
        try:
            folder.remove_vhost(doomed)
        except (StoreFailed, PowerLost):
            returned = False
        else:
            returned = True
        for after in (files.after_kill(), *map(files.after_loss, LOSSES)):
            there = check(after, doomed)
            outcomes.add(there)
            assert not (returned and there), f"call {n}"
        if returned:
            break
    assert n > 10
    assert outcomes == {True, False}


@pytest.mark.fault
def test_each_call_of_a_start_that_finishes_a_removal() -> None:
    """A start that is interrupted while it finishes a removal leaves the rest to the next one."""
    for n in count(1):
        folder = new_folder("doomed")
        files = folder.files
        assert isinstance(files, FaultyFiles)
        files.fail_at = files.calls + 8  # in the middle of the folder that already has its new name
        with pytest.raises(StoreFailed):
            folder.remove_vhost("doomed")
        after = files.after_kill()
        after.lose_at = n
        try:
            DataFolder.open(after, PATH)
        except PowerLost:
            for seed in LOSSES:
                assert not check(after.after_loss(seed), "doomed")
        else:
            break
    assert n > 10
