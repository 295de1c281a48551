"""A lake's table: each batch once, one writer per tap, and log entries on disk when a commit returns."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from broker.pipeline.faults import LakeRefused
from broker.pipeline.jobs.expire import ExpireOptions, conditions
from broker.pipeline.lake import table
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.place import Disk
from broker.pipeline.lake.slot_copy import Copied, DayFiles
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.schema import ARROW_SCHEMA
from tests.delta_log import DeltaTableLog, messages_of, orphans_of

STORE = "a" * 32
START = "b" * 32
AUDIT = (STORE, START, "/", "audit")
DAY_US = 86_400_000_000
FIRST_US = 20_000 * DAY_US  # 2024-10-04


def batch(
    lake: Lake, first: int, last: int | None = None, *, query: str = "q", day: int = 0, key: str = "k"
) -> LakeBatch:
    """Return a batch with a written file: one row per seal, with the seal as its offset."""
    last = first if last is None else last
    rows = [
        {"vhost": "/", "queue": "audit", "seal": seal, "offset": seal, "routing_key": key, "body": b"x", "store": STORE,
         "ts": FIRST_US + day * DAY_US + seal}
        for seal in range(first, last + 1)
    ]  # fmt: skip
    with DayFiles(lake.disk, lake.message_table.folder, query, ARROW_SCHEMA) as files:
        files.add(pa.RecordBatch.from_pylist(rows, ARROW_SCHEMA))
        made = files.finish()
    return LakeBatch(query, last, START, Copied(made, seals={AUDIT: (first, last)}, slots=1, rows=len(rows)))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Provide a lake without messages."""
    return Lake(tmp_path / "lake", create=True)


def offsets(lake: Lake) -> list[int]:
    """Return the offsets by the log, and check that no file is unknown to it."""
    folder = lake.message_table.folder
    assert not orphans_of(folder)
    return messages_of(folder.parent)


def test_a_batch_that_is_played_again_changes_nothing(lake: Lake) -> None:
    """A repeated batch is ignored, also from another writer; `deltalake` alone would accept it again."""
    assert lake.commit(batch(lake, 1, 3))
    assert lake.commit(batch(lake, 4))
    entries = DeltaTableLog.read(lake.message_table.folder).entries
    for again in (lake, Lake(lake.place)):
        assert not again.commit(batch(again, 4))
        assert not again.commit(batch(again, 1, 3))
    log = DeltaTableLog.read(lake.message_table.folder)
    assert (log.entries, offsets(lake)) == (entries, [1, 2, 3, 4])
    assert log.transactions == {f"slotmq/{STORE}/{START}/%2F/audit": 4, f"slotmq-query/q/{START}": 4}
    assert lake.archived(STORE) == {("/", "audit"): {START: 4}}


def test_a_batch_of_other_slots_is_refused(lake: Lake) -> None:
    """A batch with a slot that the lake has is refused, and the lake is unchanged."""
    lake.commit(batch(lake, 1, 3))
    with pytest.raises(LakeRefused, match="up to seal 3 already, and was to get seal 3 again"):
        lake.commit(batch(lake, 3, 4))
    with pytest.raises(LakeRefused, match=r"up to seal 3 already, and was to get seal 2 again: .* --take-over"):
        lake.commit(batch(lake, 2, 9, query="other"))
    assert offsets(lake) == [1, 2, 3]


def test_two_writers_of_a_tap_are_one_behind_the_other(lake: Lake) -> None:
    """Two writers find the same slots free: one commits, the other compares again and is refused or follows."""
    meet = threading.Barrier(2)

    class MeetingDisk(Disk):
        """Waits until both writers have compared and neither has written."""

        met = False

        def sync_folder(self, folder: Path) -> None:
            super().sync_folder(folder)
            if folder.name == "_delta_log" and not self.met:
                self.met = True
                meet.wait(20)

    said: dict[str, str] = {}

    def commit(query: str, made: LakeBatch) -> None:
        try:
            said[query] = str(Lake(lake.place, disk=MeetingDisk()).commit(made))
        except LakeRefused as refused:
            said[query] = str(refused)

    batches = {"q": batch(lake, 1, 3, query="q"), "r": batch(lake, 1, 5, query="r")}
    threads = [threading.Thread(target=commit, args=each) for each in batches.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = [query for query, found in said.items() if found == "True"]
    [refused] = [found for query, found in said.items() if query != winner]
    assert "only one archive may write a tap" in refused
    assert offsets(lake) == list(range(1, 4 if winner == "q" else 6))


def test_writers_of_other_taps_do_not_block_each_other(lake: Lake) -> None:
    """A writer that another one preceded compares again and continues."""

    def work(query: str) -> None:
        mine = Lake(lake.place)
        for number in range(8):
            made = batch(mine, number + 1, query=query)
            mine.commit(
                LakeBatch(
                    query,
                    made.seal,
                    START,
                    Copied(made.copied.files, seals={(STORE, START, "/", query): (made.seal,) * 2}),
                )
            )

    threads = [threading.Thread(target=work, args=(query,)) for query in "qrs"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert offsets(lake) == sorted([*range(1, 9)] * 3)
    assert lake.archived(STORE) == {("/", query): {START: 8} for query in "qrs"}


class NotingDisk(Disk):
    """Notes what is synced: the ends of names of files, and folders with a slash."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sync(self, file: Any) -> None:
        super().sync(file)
        self.calls.append(Path(file.name).name[-13:])

    def sync_file(self, path: Path) -> None:
        super().sync_file(path)
        self.calls.append(path.name)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.calls.append(f"{folder.name}/")


def test_an_entry_and_its_folder_are_on_disk_before_a_commit_returns(lake: Lake) -> None:
    """`deltalake` renames the entry without a sync; here the entry, its folder and its files are synced."""
    disk = NotingDisk()
    calls, noting = disk.calls, Lake(lake.place, disk=disk)
    made = batch(noting, 1)
    [file] = made.copied.files
    assert calls[-2:] == [file.path[-13:], "date=2024-10-04/"]
    noting.commit(made)
    assert calls[-2:] == [f"{1:020}.json", "_delta_log/"]
    calls.clear()
    assert not noting.commit(batch(noting, 1))  # of a writer that died before the sync
    assert f"{1:020}.json" in calls and calls.count("_delta_log/") == 1


def test_every_entry_is_on_disk_before_a_vacuum(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several entries that no one synced are on disk, with their files, before a vacuum removes what they replaced."""
    disk = NotingDisk()
    calls = disk.calls
    for number in range(4):
        lake.commit(batch(lake, number + 1, day=number % 2))
    other = DeltaTable(lake.message_table.uri)
    for day in ("2024-10-04", "2024-10-05"):
        other.optimize.compact(partition_filters=[("date", "=", day)])
    merged = [Path(file.path).name for file in lake.files()]
    vacuum = DeltaTable.vacuum

    def noted(*given: Any, **more: Any) -> Any:
        calls.append("vacuum")
        return vacuum(*given, **more)

    monkeypatch.setattr(DeltaTable, "vacuum", noted)
    lake = Lake(lake.place, disk=disk)
    assert lake.message_table.vacuum(0) == 4
    entries = [f"{number:020}.json" for number in (4, 5, 6)]
    before = calls[: calls.index("vacuum")]
    assert [name for name in before if name.endswith(".json")] == entries
    assert set(merged) < set(before)
    assert before[-2:] == [entries[-1], "_delta_log/"]


@pytest.mark.slow
def test_the_kernel_sees_the_syncs(lake: Lake, tmp_path: Path) -> None:
    """The entry is linked, then synced, then its folder, before the process reports success."""
    strace = "/usr/bin/strace"
    if not Path(strace).exists():
        pytest.skip("there is no strace")
    code = (
        "import sys; from broker.pipeline.lake.lake import Lake; from tests.unit.pipeline.test_lake_table import batch;"
        "lake = Lake(sys.argv[1]); lake.commit(batch(lake, 1)); sys.stdout.write('released')"
    )
    trace = tmp_path / "trace"
    calls = "trace=linkat,rename,renameat,renameat2,fsync,write"
    subprocess.run(
        [strace, "-f", "-y", "-e", calls, "-o", trace, sys.executable, "-c", code, str(lake.place)],
        check=True, cwd=Path(__file__).parents[3], stdout=subprocess.DEVNULL, timeout=50,
    )  # fmt: skip
    lines = trace.read_text().splitlines()
    entry = f"_delta_log/{1:020}.json"
    placed = next(at for at, line in enumerate(lines) if entry in line and ("linkat(" in line or "rename" in line))
    synced = next(at for at, line in enumerate(lines) if at > placed and "fsync(" in line and f"{entry}>" in line)
    folder = next(at for at, line in enumerate(lines) if at > synced and "fsync(" in line and "_delta_log>" in line)
    assert folder < next(at for at, line in enumerate(lines) if "released" in line and "write(1" in line)


def test_what_a_power_loss_tore_is_removed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn entry at the end, checkpoint or compaction is removed: the table is what it was before."""
    monkeypatch.setattr(table, "CHECKPOINT_EVERY", 3)
    for number in range(4):
        lake.commit(batch(lake, number + 1))
    log = lake.message_table.folder / "_delta_log"
    (log / f"{4:020}.json").write_bytes((log / f"{4:020}.json").read_bytes()[:50])
    checkpoint = log / f"{3:020}.checkpoint.parquet"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    assert Lake(lake.place, create=True).archived(STORE) == {("/", "audit"): {START: 3}}
    assert not checkpoint.exists()
    lake.commit(batch(lake, 4))

    lake.compact(1 << 20)
    [merged] = lake.files()
    whole = (lake.message_table.folder / merged.path).read_bytes()
    (lake.message_table.folder / merged.path).write_bytes(whole[:-1])
    assert len(Lake(lake.place, create=True).files()) == 4
    assert messages_of(lake.place.root) == [1, 2, 3, 4]


def test_what_else_became_of_a_lake_is_no_power_loss(lake: Lake) -> None:
    """A lost file of an archive is reported to readers; its entry and its seals are kept."""
    for number in range(2):
        lake.commit(batch(lake, number + 1))
    for file in lake.files():
        (lake.message_table.folder / file.path).unlink()
    assert Lake(lake.place, create=True).archived(STORE) == {("/", "audit"): {START: 2}}


@pytest.mark.parametrize("answer", [CommitFailedError("is there already"), OSError("connection reset")], ids=str)
def test_files_of_a_commit_whose_answer_was_lost_stay(
    lake: Lake, answer: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that `deltalake` reports as failed may be in the bucket, so the files that its entry names are kept."""
    lake.commit(batch(lake, 1, 3))
    write = DeltaTable.create_write_transaction

    def lose(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        raise answer

    with monkeypatch.context() as patched, suppress(LakeRefused):
        patched.setattr(DeltaTable, "create_write_transaction", lose)
        lake.commit(batch(lake, 4, 6))
    assert not lake.commit(batch(lake, 4, 6))
    assert all((lake.message_table.folder / file.path).exists() for file in lake.files())
    assert offsets(lake) == [1, 2, 3, 4, 5, 6]


def test_a_lake_that_another_archive_creates_at_the_same_moment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package fails to create a table that another writer has just created; the lake exists all the same."""
    create = DeltaTable.create

    def lose(*arguments: Any, **options: Any) -> None:
        create(*arguments, **options)
        raise CommitFailedError("Protocol changed since last commit")

    monkeypatch.setattr(DeltaTable, "create", lose)
    assert Lake(tmp_path / "lake", create=True).files() == []


def test_a_batch_whose_checkpoint_cannot_be_written_is_in_the_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry counts, with its files, although its checkpoint failed; the next checkpoint is tried again."""
    monkeypatch.setattr(table, "CHECKPOINT_EVERY", 2)
    blocker = lake.message_table.folder / "_delta_log" / f"{2:020}.checkpoint.parquet"
    blocker.mkdir()
    assert all(lake.commit(batch(lake, number + 1)) for number in range(3))
    assert not lake.commit(batch(lake, 2))
    assert all((lake.message_table.folder / file.path).exists() for file in lake.files())
    blocker.rmdir()
    assert lake.commit(batch(lake, 4))
    assert offsets(lake) == [1, 2, 3, 4]


def test_a_failure_of_the_package_is_a_line_with_its_cause() -> None:
    """The line has the first line, "Generic S3 error", and its cause, without the XML document of the response."""
    text = "Generic S3 error\n \x1b[31m\u21b3\x1b[0m 404 Not Found\n \x1b[31m\u21b3\x1b[0m <?xml?>\n<Error/>\n"
    with pytest.raises(LakeRefused) as refused, table.delta_faults("s3://a/b"):
        raise OSError(text)
    assert str(refused.value) == "s3://a/b: Generic S3 error: 404 Not Found"


def test_a_vacuum_that_is_killed_brings_nothing_back(lake: Lake) -> None:
    """A vacuum that removed a compacted file with a deleted row, but not the older files, restores no deleted row."""
    for number in range(3):
        lake.commit(batch(lake, number + 1, key=f"k{number}"))
    lake.compact(1 << 20)
    [merged] = lake.files()
    assert lake.message_table.delete("routing_key = 'k1'") == 1
    (lake.message_table.folder / merged.path).unlink()
    assert messages_of(Lake(lake.place, create=True).place.root) == [1, 3]
    [kept] = lake.files()
    assert lake.message_table.delete("date < '2100-01-01'") == 2
    (lake.message_table.folder / kept.path).unlink()
    assert Lake(lake.place, create=True).files() == []


def test_compaction_beside_an_archive_loses_and_doubles_nothing(lake: Lake) -> None:
    """Today's small files are compacted too, and a reader of the old ones continues until the vacuum."""
    for number in range(6):
        lake.commit(batch(lake, number + 1, day=number % 2))
    old, before = lake.files(), messages_of(lake.place.root)
    beside = threading.Thread(target=lambda: [lake.commit(batch(lake, 7 + n)) for n in range(5)])
    beside.start()
    done = Lake(lake.place).compact(1 << 20, "2024-10-04")
    beside.join()
    assert (done["numFilesRemoved"] >= 3, done["numFilesAdded"]) == (True, 1)
    assert offsets(lake) == [*before, *range(7, 12)]
    assert lake.vacuum(1) == 0
    assert all((lake.message_table.folder / file.path).exists() for file in old)
    lake.compact(1 << 20)
    assert [file.rows for file in lake.files()] == [8, 3]
    assert lake.vacuum(0) == 12
    assert offsets(lake) == list(range(1, 12))
    assert lake.archived(STORE) == {("/", "audit"): {START: 11}}


def test_entries_are_folded_and_go(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint keeps what the log says about taps, so that old entries can be deleted."""
    monkeypatch.setattr(table, "CHECKPOINT_EVERY", 4)
    monkeypatch.setitem(table.SETTINGS, "delta.logRetentionDuration", "interval 0 hours")
    short = Lake(lake.place.root.parent / "short", create=True)
    for number in range(10):
        short.commit(batch(short, number + 1))
    log = short.message_table.folder / "_delta_log"
    assert len(list(log.glob("*.json"))) < 6
    assert short.archived(STORE) == {("/", "audit"): {START: 10}}
    assert not short.commit(batch(short, 10))
    assert sum(file.rows for file in short.files()) == 10
    assert short.message_table.last_passed("q", ["", START]) == (10, START)


def test_messages_are_deleted_by_day_and_by_key(lake: Lake) -> None:
    """Deleted messages are counted, their seals stay in the log, and the vacuum frees their bytes."""
    for number in range(4):
        lake.commit(batch(lake, number + 1, day=number, key="it's" if number == 3 else "k"))
    assert lake.message_table.delete(conditions(ExpireOptions("", older="2024-10-06T12:00"))[0]) == 2
    assert messages_of(lake.place.root) == [3, 4]
    assert lake.message_table.delete(conditions(ExpireOptions("", keys=("it's", "no"), queues=("audit",)))[0]) == 1
    assert messages_of(lake.place.root) == [3]
    lake.vacuum(0)
    assert [path.parent.name for path in lake.message_table.folder.glob("date=*/*.parquet")] == ["date=2024-10-06"]
    assert lake.archived(STORE) == {("/", "audit"): {START: 4}}
    assert not lake.commit(batch(lake, 4))


def test_a_lake_is_read_as_it_was(lake: Lake) -> None:
    """A lake is read at a version, of which the first has no files, and at a time."""
    for number in range(3):
        lake.commit(batch(lake, number + 1))
    assert [len(Lake(lake.place, version=version).files()) for version in (0, 1, 3)] == [0, 1, 3]
    for at in range(4):
        os.utime(lake.message_table.folder / "_delta_log" / f"{at:020}.json", (1_700_000_000 + at, 1_700_000_000 + at))
    then = datetime.fromtimestamp(1_700_000_002, UTC)
    for version in (then, then.isoformat(), "2023-11-14T22:13:22Z"):
        assert len(Lake(lake.place, version=version).files()) == 2
    with pytest.raises(LakeRefused, match=r"has no version 9: the last one is 3$"):
        Lake(lake.place, version=9)
    with pytest.raises(LakeRefused, match=r"has no version of 2023-11-14T22:13:19.*: the oldest one is of .*22:13:20"):
        Lake(lake.place, version="2023-11-14T22:13:19Z")


def test_files_are_chosen_by_the_times_of_their_rows(lake: Lake) -> None:
    """The start of a time range is inclusive, the end exclusive."""
    for number in range(3):
        lake.commit(batch(lake, number + 1, day=number))
    days = [f"2024-10-0{day}" for day in (4, 5, 6)]
    for bounds, found in [((None, None), days), ((days[1], None), days[1:]), ((None, days[1]), days[:1]),
                          ((days[1], days[2]), days[1:2]), (("2024-10-07", None), [])]:  # fmt: skip
        assert [file.date for file in lake.files(*bounds)] == found, bounds


def test_what_is_no_lake_is_refused_in_a_line(tmp_path: Path) -> None:
    """A file, an unrelated folder and a table of another program are refused with one line."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    for name in ("file", "full", "none"):
        with pytest.raises(LakeRefused, match="is not a lake"):
            Lake(tmp_path / name)
    for name in ("file", "full"):
        with pytest.raises(LakeRefused, match="is not a lake"):
            Lake(tmp_path / name, create=True)
    for name in ("a[b", "a%20b", "a^b", "a|b", "a\\b"):
        with pytest.raises(LakeRefused, match="Delta does not support the"):
            Lake(tmp_path / name, create=True)
