"""The data folder: one broker at a time, and a folder for each vhost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.store.damage import (
    CorruptFile,
    FolderBusy,
    FolderUnwritable,
    LinkedFolder,
    NewerFormat,
    NoDataFolder,
    OlderFormat,
    StoreFailed,
)
from broker.store.data_folder import DataFolder
from broker.store.files import Files
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore

PATH = Path("/srv/data")


@pytest.fixture
def folder(files: MemoryFiles) -> DataFolder:
    """Provide the data folder of a broker that runs."""
    return DataFolder.open(files, PATH)


def test_one_broker_at_a_time(files: MemoryFiles, folder: DataFolder) -> None:
    """A second broker is told that the folder is busy until the first one closes it."""
    with pytest.raises(FolderBusy, match="/srv/data"):
        DataFolder.open(files, PATH)
    folder.close()
    DataFolder.open(files, PATH)


NAMES = ["/", "", "a/b", ".", "..", "../../etc", "%", "%2F", "%%", "%removed-1", "~", "ü.%2F", "plain-name_1", "\0\n"]
LONG = ["ü" * 127 + "x", "ü" * 127 + "y", "/" * 255, "." * 67]


@pytest.mark.parametrize("name", [*NAMES, *LONG])
def test_every_vhost_has_a_folder_of_its_own(files: MemoryFiles, folder: DataFolder, name: str) -> None:
    """A vhost of any name is one folder below vhosts, with a valid file name, and is listed by its name."""
    path = folder.vhost_folder(name)
    assert path.parent == PATH / "vhosts"
    assert path.name not in ("", ".", "..")
    assert len(path.name.encode()) <= 200
    files.make_folder(path)
    folder.close()
    assert DataFolder.open(files, PATH).list_vhosts() == [name]


def test_no_two_vhosts_share_a_folder(files: MemoryFiles, folder: DataFolder) -> None:
    """Similar names have different folders, and a folder of no vhost is skipped."""
    assert len({folder.vhost_folder(name) for name in [*NAMES, *LONG]}) == len(NAMES) + len(LONG)
    for name in ("lost+found", "%2f", ".hidden", "%%"):
        files.make_folder(PATH / "vhosts" / name)
    assert folder.list_vhosts() == sorted(LONG)


def test_the_folder_of_the_default_vhost_stays() -> None:
    """The folder that an earlier version wrote is found."""
    assert DataFolder.open(MemoryFiles(), PATH).vhost_folder("/") == PATH / "vhosts" / "%2F"


@pytest.mark.parametrize("found", [b"", b"another", b"\xff"])
def test_a_long_name_that_was_lost_is_written_again(files: MemoryFiles, folder: DataFolder, found: bytes) -> None:
    """A lost name file is rewritten when the vhost is opened; until then a store without it is reported."""
    path = folder.vhost_folder(LONG[0])
    files.contents[path / "name"].block[:] = found
    assert folder.list_vhosts() == []  # a crash left a folder without a store
    files.make_folder(path / "log")
    with pytest.raises(CorruptFile, match="does not name the vhost"):
        folder.list_vhosts()
    assert folder.vhost_folder(LONG[0]) == path
    assert folder.list_vhosts() == LONG[:1]


def test_a_removed_vhost_is_gone(files: MemoryFiles, folder: DataFolder) -> None:
    """Removing a vhost removes its folder and no other; a second removal changes nothing."""
    for name in ("a", "b"):
        VhostStore.open(files, folder.vhost_folder(name), segment_bytes=1000, sync=True)[0].close()
    there = files.list(PATH / "vhosts" / "b")
    for _ in range(2):
        folder.remove_vhost("a")
        assert folder.list_vhosts() == ["b"]
        assert files.list(PATH / "vhosts") == ["b"]
        assert files.list(PATH / "vhosts" / "b") == there
    assert not [path for path in (*files.contents, *files.folders) if path.is_relative_to(PATH / "vhosts" / "a")]


def test_on_real_files(tmp_path: Path) -> None:
    """The operating system accepts every name, and a removal follows no link out of the folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    folder = DataFolder.open(Files(), tmp_path / "data")
    for name in [*NAMES, *LONG]:
        store, _ = VhostStore.open(Files(), folder.vhost_folder(name), segment_bytes=1000, sync=True)
        store.close()
    assert folder.list_vhosts() == sorted([*NAMES, *LONG])
    (folder.vhost_folder("/") / "elsewhere").symlink_to(outside)
    for name in [*NAMES, *LONG]:
        folder.remove_vhost(name)
    folder.close()
    assert list((tmp_path / "data" / "vhosts").iterdir()) == []
    assert (outside / "kept").exists()


@pytest.mark.parametrize(
    ("stamp", "refused", "says"),
    [
        (b"slotmq data folder, format 9\n", NewerFormat, "written by a newer SlotMQ, format 9; .* reads up to 3$"),
        (b"slotmq data folder, format 2\n", OlderFormat, "written by an older SlotMQ, format 2; .* reads only 3$"),
        (b"", NoDataFolder, "not a data folder: its file 'format' is missing$"),
        (b"slotmq data folder, format ?\n", NoDataFolder, "not a data folder: its file 'format' is not SlotMQ's$"),
        (b"\xff\0", NoDataFolder, "not a data folder: its file 'format' is not SlotMQ's$"),
    ],
)
def test_another_format_is_refused(stamp: bytes, refused: type[Exception], says: str) -> None:
    """A folder of another version, or of another program, is reported and left alone."""
    files = MemoryFiles()
    DataFolder.open(files, PATH).close()
    files.contents[PATH / "format"].block[:] = stamp
    there = {path: bytes(content.block) for path, content in files.contents.items()}
    with pytest.raises(refused, match=f"^/srv/data: {says}"):
        DataFolder.open(files, PATH)
    assert {path: bytes(content.block) for path, content in files.contents.items()} == there


def test_each_start_has_an_incarnation_of_its_own(tmp_path: Path) -> None:
    """Each start has a unique incarnation, also in a copy of the folder, which the folder records."""
    seen = set()
    for name in ("data", "data", "copy", "copy"):
        if name == "copy" and not (tmp_path / "copy").exists():
            shutil.copytree(tmp_path / "data", tmp_path / "copy")
        folder = DataFolder.open(Files(), tmp_path / name)
        folder.close()
        assert len(bytes.fromhex(folder.incarnation)) == 16
        assert (tmp_path / name / "incarnation").read_text() == f"slotmq incarnation, {folder.incarnation}\n"
        seen.add(folder.incarnation)
    assert len(seen) == 4


def test_a_folder_that_cannot_be_made_is_told() -> None:
    """A folder that cannot be created is one error that names it."""

    class ReadOnly(MemoryFiles):
        def make_folder(self, folder: Path) -> None:
            raise StoreFailed(folder, "Read-only file system")

    with pytest.raises(FolderUnwritable, match=r"/srv/data.*Read-only file system"):
        DataFolder.open(ReadOnly(), PATH)


@pytest.mark.parametrize("name", ["lock", "format", "definitions", "slots", "vhosts", "vhosts/%2F", "vhosts/%2F/log"])
def test_a_link_in_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Its creator could make the broker write anywhere its account may, so nothing after it is touched."""
    path, outside = tmp_path / "data", tmp_path / "outside"
    folder = DataFolder.open(Files(), path)
    VhostStore.open(Files(), folder.vhost_folder("/"), segment_bytes=1000, sync=True)[0].close()
    folder.close()
    place = path / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    outside.mkdir()
    place.symlink_to(outside)
    with pytest.raises(LinkedFolder, match=f"/{name}: a symbolic link, which the broker does not follow"):
        DataFolder.open(Files(), path)
    assert list(outside.iterdir()) == []
    place.unlink()
    if name != "format":  # without which it may be anybody's folder
        DataFolder.open(Files(), path).close()


def test_no_file_is_opened_through_a_link(tmp_path: Path) -> None:
    """A link that comes while the broker runs is not followed either."""
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").symlink_to(tmp_path)
    for step in (
        lambda: Files().read(tmp_path / "link"),
        lambda: Files().open(tmp_path / "link", create=True),
        lambda: Files().lock(tmp_path / "link"),
        lambda: Files().make_folder(tmp_path / "folder"),
    ):
        with pytest.raises(StoreFailed, match="a symbolic link, which the broker does not follow"):
            step()


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    """Operators put data on another disk so."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    DataFolder.open(Files(), tmp_path / "data").close()
    assert (tmp_path / "disk" / "format").exists()


@pytest.mark.parametrize(("mode", "warned"), [(0o700, False), (0o755, False), (0o770, True), (0o777, True)])
def test_a_folder_that_others_can_write_is_told(tmp_path: Path, mode: int, *, warned: bool) -> None:
    """It is used all the same: Kubernetes makes its emptyDir with mode 0777."""
    tmp_path.chmod(mode)
    with capture_logs() as events:
        DataFolder.open(Files(), tmp_path).close()
    told = [(event["event"], event["log_level"], event["mode"]) for event in events]
    assert told == ([("data_folder.open_to_others", "warning", f"{mode:o}")] if warned else [])
    tmp_path.chmod(0o700)
