"""Power goes while a data folder is opened: the next start opens it all the same."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from broker.store.data_folder import DataFolder
from tests.fault.faulty_files import FaultyFiles, PowerLost

PATH = Path("/srv/data")
LOSSES = range(60)


@pytest.mark.fault
@pytest.mark.parametrize("there", [False, True], ids=["first start", "later start"])
def test_each_call_of_a_start(there: bool) -> None:
    """Whatever a power loss leaves of the folder's own files, they are mended or whole."""
    for n in count(1):
        files = FaultyFiles(folder=PATH.parent)
        if there:
            DataFolder.open(files, PATH).close()
        files.lose_at = files.calls + n
        try:
            DataFolder.open(files, PATH)
        except PowerLost:
            for seed in LOSSES:
                after = files.after_loss(seed)
                DataFolder.open(after, PATH).close()
                assert DataFolder.open(after.after_loss(seed), PATH).list_vhosts() == []
        else:
            break
    assert n > 4
