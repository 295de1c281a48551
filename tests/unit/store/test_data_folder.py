"""The data folder: one broker at a time, a folder per vhost."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.amqp.errors import StoreFailed
from broker.store.damage import FolderBusy, FolderUnwritable
from broker.store.data_folder import DataFolder
from broker.store.memory_files import MemoryFiles

PATH = Path("/srv/data")


def test_one_broker_at_a_time() -> None:
    """A second broker is told that the folder is busy, until the first one closes."""
    files = MemoryFiles()
    folder = DataFolder.open(files, PATH)
    with pytest.raises(FolderBusy, match="/srv/data"):
        DataFolder.open(files, PATH)
    folder.close()
    DataFolder.open(files, PATH)


@pytest.mark.parametrize("name", ["/", "", "a/b", "..", "ü.%2F", "plain-name_1"])
def test_every_vhost_has_a_folder_of_its_own(name: str) -> None:
    """Any vhost name is one folder name, which says the vhost's name."""
    files = MemoryFiles()
    folder = DataFolder.open(files, PATH)
    path = folder.vhost_folder(name or "empty")
    assert path.parent == PATH / "vhosts"
    files.make_folder(path)
    assert folder.vhosts() == [name or "empty"]


def test_another_format_is_refused() -> None:
    """A folder that another version wrote is left alone."""
    files = MemoryFiles()
    DataFolder.open(files, PATH).close()
    files.contents[PATH / "format"].block[:] = b"slotmq data folder, format 9\n"
    with pytest.raises(FolderUnwritable, match="format 9"):
        DataFolder.open(files, PATH)
    files.contents[PATH / "format"].block[:] = b"slotmq data folder, format 1\n"
    DataFolder.open(files, PATH)


def test_a_folder_that_cannot_be_made_is_told() -> None:
    """What the operating system refuses is one error that names the folder."""

    class ReadOnly(MemoryFiles):
        def make_folder(self, folder: Path) -> None:
            raise StoreFailed(folder, "Read-only file system")

    with pytest.raises(FolderUnwritable, match=r"/srv/data.*Read-only file system"):
        DataFolder.open(ReadOnly(), PATH)
