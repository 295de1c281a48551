"""A lake in a bucket: the same guarantees as in a folder, with the options of `deltalake`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.main import main

pytest.importorskip("moto")

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.slot_copy import LakeTarget
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.catalog import StoreCatalog
from broker.pipeline.source.seal_stream import StreamOffset
from broker.pipeline.source.slot_handle import SlotHandle
from tests.slot_folders import SlotFolder, numbered
from tests.unit.pipeline.bucket import bucket
from tests.unit.pipeline.test_lake_table import STORE, batch

pytestmark = pytest.mark.slow

PLACE = "s3://attic/lakes/news"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Provide a bucket."""
    with bucket("attic") as made:
        yield made


@pytest.fixture
def place(options: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Provide a place in the bucket for the test, with the environment that leads to it."""
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    return f"s3://attic/{request.node.name}"


def offsets(lake: Lake) -> list[int]:
    """Return the offsets that `deltalake` reads."""
    found: list[int] = lake.message_table.load().to_pyarrow_table(columns=["offset"]).column("offset").to_pylist()
    return sorted(found)


def test_a_bucket_holds_each_batch_once(place: str) -> None:
    """A batch is stored once when repeated, written by another writer, compacted, deleted from and vacuumed."""
    with pytest.raises(LakeRefused, match=rf"{place} is not a lake"):
        Lake(place)
    lake = Lake(place, create=True)
    for number in range(3):
        assert lake.commit(batch(lake, number + 1))
    again = Lake(place, create=True)
    assert not again.commit(batch(again, 3))
    with pytest.raises(LakeRefused, match="only one archive may write a tap"):
        again.commit(batch(again, 3, 4, query="other"))
    assert (offsets(lake), list(lake.archived(STORE))) == ([1, 2, 3], [("/", "audit")])
    assert lake.compact(1 << 20)["numFilesAdded"] == 1
    assert lake.message_table.delete("offset = 2") == 1
    lake.vacuum(0)
    assert offsets(lake) == [1, 3]
    [file] = lake.files()
    names = lake.disk.list(lake.message_table.folder / f"date={file.date}")
    assert names == [file.path.rpartition("/")[2]]  # and no file of a refused batch


def test_a_time_before_the_oldest_version_is_refused(place: str) -> None:
    """A version can be chosen by a time at which the lake existed, as in a folder."""
    lake = Lake(place, create=True)
    lake.commit(batch(lake, 1))
    assert offsets(Lake(place, version="2999-01-01T00:00:00Z")) == [1]
    with pytest.raises(LakeRefused, match=r"has no version of 2001-01-01T00:00:00\+00:00: the oldest one is of 2"):
        Lake(place, version="2001-01-01T00:00:00Z")


def test_slots_go_into_a_bucket(place: str, tmp_path: Path) -> None:
    """A task and a commit write slots into the bucket, and a failure leaves no object."""
    folder = SlotFolder(tmp_path / "store")
    folder.add_slot("audit", numbered(30))
    target = LakeTarget(Lake(place, create=True).place, "q", str(folder.path))
    slots = [SlotHandle.of(folder.store, seal) for seal in folder.view.seals]
    lake = Lake(place)
    lake.commit(LakeBatch("q", 1, "", target.copy(slots)))
    assert offsets(lake) == list(range(1, 31))
    lake.discard(LakeBatch("q", 2, "", target.copy(slots)))
    lake.message_table.sweep("q")
    assert len(lake.disk.list(lake.message_table.folder / "date=2023-11-14")) == 1


def test_an_archive_on_another_machine_leaves_what_is_under_way(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines archive into a bucket under one name: neither removes files of the other, and no row is doubled."""
    folder = SlotFolder(tmp_path / "store")
    for _ in range(2):
        folder.add_slot("audit", numbered(10))
    runs = []
    for machine in ("a", "b"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        run = ArchiveRun(Lake(place, create=True), StoreCatalog(folder.path), "archive")
        run.begin()
        slots = [SlotHandle.of(folder.store, seal) for seal in folder.view.seals]
        runs.append((run, run.target().copy(slots)))
    for run, copied in runs:
        run.commit(copied, StreamOffset.at(folder.view, 2))
        run.end()
    assert offsets(Lake(place)) == list(range(1, 21))


def test_the_commands_take_the_options_of_a_bucket(
    options: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options come from the command line or the environment; a missing bucket is one line without secrets."""
    for name in options:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    words = [word for name, value in options.items() for word in ("--storage-option", f"{name.lower()}={value}")]
    missing = ["pipeline", "compact", "--lake", "s3://missing/lake", *words, "--json"]
    assert main(missing) == 2
    told = capsys.readouterr().err
    assert told.startswith("slotmq: s3://missing/lake") and len(told.splitlines()) == 1 and "secret" not in told
    lake = Lake("s3://attic/commands", create=True)
    for number in range(2):
        lake.commit(batch(lake, number + 1))
    assert main(["pipeline", "compact", "--lake", "s3://attic/commands", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files_after"] == 1
    assert main(["pipeline", "expire", "--lake", "s3a://attic/commands", *words, "--older", "1d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
