"""Power is lost while a data folder is opened: the next start still opens it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from broker.store.data_folder import DataFolder
from tests.fault.faulty_files import FaultyFiles, PowerLost

PATH = Path("/srv/data")
LOSSES = range(60)
NOW = b"slotmq data folder, format 3\n"


@pytest.mark.fault
@pytest.mark.parametrize("there", [False, True], ids=["first start", "later start"])
def test_each_call_of_a_start(there: bool) -> None:
    """After a power loss the folder's own files are repaired or complete."""
    for n in count(1):
        files = FaultyFiles(folder=PATH.parent)
        if there:
            DataFolder.open(files, PATH).close()
            files.remove(PATH / "incarnation")
            files.sync_folder(PATH)
        files.lose_at = files.calls + n
        try:
            begun = DataFolder.open(files, PATH)
        except PowerLost:
            for seed in LOSSES:
                after = files.after_loss(seed)
                if there:
                    assert after.read(PATH / "format") == NOW
                if after.exists(PATH / "incarnation"):  # no file of this version exists before the stamp
                    assert after.read(PATH / "format") == NOW
                DataFolder.open(after, PATH).close()
                assert DataFolder.open(after.after_loss(seed), PATH).list_vhosts() == []
        else:
            break
    assert n > 4
    for seed in LOSSES:  # everything that a start returns is on disk
        after = files.after_loss(seed)
        assert after.read(PATH / "format") == NOW
        assert begun.incarnation.encode() in after.read(PATH / "incarnation")
