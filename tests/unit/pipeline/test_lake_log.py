"""The log of a table: entries are made once, snapshots say the same in one file, and what is useless goes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from broker.pipeline.faults import LakeRefused
from broker.pipeline.lake import Lake, manifest
from broker.pipeline.lake.disk import Disk
from broker.pipeline.lake.entry import Entry, LakeFile, SealRange, runs, within
from broker.pipeline.lake.manifest import DAY_MS, Manifest, entry_name
from broker.pipeline.lake.state import LakeState
from broker.pipeline.lake.table import Table

STORE = "a" * 32
NOW_MS = manifest.now_ms()  # files are made now, whatever the clock says


class Clock:
    """Tells what the test says."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


def file(path: str, rows: int = 10, first_ms: int = 0, last_ms: int = 0) -> LakeFile:
    """Return a file as the log has it."""
    return LakeFile(path, path.partition("/")[0].removeprefix("date="), rows, 100, 1, 1, first_ms, last_ms)


def entry(query: str, batch: int, *files: LakeFile, seals: tuple[int, int] | None = None, at_ms: int = NOW_MS) -> Entry:
    """Return an entry that adds files, and says which seals they hold."""
    sealed = () if seals is None else (SealRange(STORE, "/", "audit", (seals,)),)
    return Entry(query, batch, at_ms, add=files, sealed=sealed, rows=sum(one.rows for one in files))


def log_of(tmp_path: Path, clock: Clock | None = None) -> Manifest:
    """Return a log."""
    return Manifest(tmp_path / "t" / "_log", Disk(), clock_ms=clock or Clock())


def test_a_batch_has_one_entry_whoever_comes_second(tmp_path: Path) -> None:
    """The second commit of a batch changes nothing, by the same writer and by one that never saw the first."""
    log = log_of(tmp_path)
    assert log.commit(entry("q", 0, file("date=d/a"), seals=(1, 3)))
    assert not log.commit(entry("q", 0, file("date=d/b"), seals=(1, 3)))
    assert not log_of(tmp_path).commit(entry("q", 0, file("date=d/c"), seals=(2, 3)))
    assert list(log_of(tmp_path).state().files) == ["date=d/a"]
    assert [name for name in os.listdir(log.folder) if name.startswith(manifest.WRITING)] == []


def test_two_writers_of_the_same_slots_are_one_behind_the_other(tmp_path: Path) -> None:
    """Neither finds the slots free while the other is about to have them: one takes them, and the other is refused."""
    inside, done = threading.Event(), threading.Event()

    class SlowDisk(Disk):
        """Links when the other writer is through, or has to wait for us."""

        def link(self, source: Path, target: Path) -> bool:
            inside.set()
            done.wait(0.3)
            return super().link(source, target)

    refused: list[LakeRefused] = []

    def commit(log: Manifest, query: str) -> None:
        try:
            log.commit(entry(query, 0, file(f"date=d/{query}"), seals=(1, 3)))
        except LakeRefused as error:
            refused.append(error)

    first = threading.Thread(target=commit, args=(Manifest(log_of(tmp_path).folder, SlowDisk()), "q"))
    first.start()
    assert inside.wait(10)
    commit(log_of(tmp_path), "r")
    done.set()
    first.join()
    assert [str(error)[:46] for error in refused] == ["the lake has tap 'audit' of vhost '/' up to se"]
    assert list(log_of(tmp_path).state().files) == ["date=d/q"]


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ("", "is no lake"), ("[]", "is no lake"), ('{"kind": "slotmq-lake"}', "is no lake"),
        ('{"kind": "slotmq-lake", "format": null}', "is no lake"),
        ('{"kind": "slotmq-lake", "format": "new"}', "is no lake"),
        ('{"kind": "slotmq-lake", "format": 2}', "of format 2, this version reads up to 1"),
        ('{"kind": "other", "format": 1}', "no lake of messages but a 'other'"),
    ],
)  # fmt: skip
def test_a_folder_that_says_something_else_is_refused(meta: str, said: str, tmp_path: Path) -> None:
    """In a line, whatever stands in its _meta.json."""
    (tmp_path / "_meta.json").write_text(meta)
    for create in (False, True):
        with pytest.raises(LakeRefused, match=said):
            Lake(tmp_path, create=create)


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    """Neither to be read nor to be made."""
    (tmp_path / "file").write_text("x")
    for create in (False, True):
        with pytest.raises(LakeRefused, match="is no lake"):
            Lake(tmp_path / "file", create=create)


def test_a_batch_of_other_slots_is_refused(tmp_path: Path) -> None:
    """A checkpoint of another lake would have its batch dropped as known; the lake stays as it is."""
    log = log_of(tmp_path)
    log.commit(entry("q", 0, file("date=d/a"), seals=(1, 3)))
    with pytest.raises(LakeRefused, match="with other slots than 3-4"):
        log.commit(entry("q", 0, file("date=d/b"), seals=(3, 4)))
    with pytest.raises(LakeRefused, match="up to seal 3 already, and was to get seal 2 again"):
        log.commit(entry("other", 0, file("date=d/c"), seals=(2, 9)))
    assert list(log.state().files) == ["date=d/a"]


def test_a_snapshot_says_what_its_entries_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every third entry; who starts from it, and who read the entries one by one, know the same."""
    monkeypatch.setattr(manifest, "SNAPSHOT_EVERY", 3)
    writer, watcher = log_of(tmp_path), log_of(tmp_path)
    for batch in range(7):
        writer.commit(entry("q", batch, file(f"date=d/{batch}"), seals=(batch + 1, batch + 1)))
        if batch == 3:
            writer.append(
                lambda n: Entry("compact", n, NOW_MS, (file("date=d/c"),), ("date=d/0", "date=d/1")), "compact"
            )
        writer.tidy()
        watcher.state()
    assert [name for name in sorted(os.listdir(writer.folder)) if name.startswith("snapshot")] == [
        "snapshot-00000000000000000003.json",
        "snapshot-00000000000000000006.json",
    ]
    for name in os.listdir(writer.folder):
        if name.startswith("q-") and int(name[2:22]) < 4:
            (writer.folder / name).unlink()
    for log in (log_of(tmp_path), watcher):
        state = log.state()
        assert sorted(state.files) == [f"date=d/{n}" for n in (2, 3, 4, 5, 6, "c")]
        assert (state.archived, state.covered) == ({(STORE, "/", "audit", None): 7}, {"q": 6, "compact": 0})
        assert not log.commit(entry("q", 1, file("date=d/again"), seals=(2, 2)))
        assert state.rows == 60


def test_a_snapshot_waits_for_an_entry_that_is_not_seen_yet() -> None:
    """A listing may show batch 2 and not yet batch 1: what such a state covers ends before the hole."""
    state = LakeState()
    for batch in (0, 2):
        state.add(entry("q", batch, file(f"date=d/{batch}")))
    assert not state.dense and state.covered == {"q": 0}
    state.add(entry("q", 1, file("date=d/1")))
    assert state.dense and state.covered == {"q": 2} and len(state.files) == 3


def test_what_is_taken_away_stays_so_whichever_entry_comes_first() -> None:
    """The entry of a compaction may be read before that of the file it replaces."""
    state = LakeState()
    state.add(Entry("compact", 0, 5, (file("date=d/new"),), ("date=d/old",)))
    state.add(entry("q", 0, file("date=d/old")))
    assert list(state.files) == ["date=d/new"] and state.removed == {"date=d/old": 5}


def test_entries_go_when_a_snapshot_of_yesterday_covers_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before it is a day old: somebody may be between listing the folder and reading its files."""
    monkeypatch.setattr(manifest, "SNAPSHOT_EVERY", 2)
    clock = Clock()
    log = log_of(tmp_path, clock)

    def write(batches: range) -> list[str]:
        for batch in batches:
            log.commit(entry("q", batch, file(f"date=d/{batch}")))
            log.tidy()
        for name in os.listdir(log.folder):
            os.utime(log.folder / name, ns=(clock.ms * 1_000_000,) * 2)
        return sorted(name for name in os.listdir(log.folder) if name.startswith("q-"))

    assert len(write(range(4))) == 4
    clock.ms += DAY_MS + 1
    assert write(range(4, 6)) == [entry_name("q", 4), entry_name("q", 5)]
    assert sorted(log_of(tmp_path).state().files) == [f"date=d/{n}" for n in range(6)]


def test_a_later_format_and_a_damaged_entry_are_refused(tmp_path: Path) -> None:
    """One line says which file it is."""
    log = log_of(tmp_path)
    log.commit(entry("q", 0, file("date=d/a")))
    path = log.folder / entry_name("q", 0)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))
    with pytest.raises(LakeRefused, match=r"q-0{20}\.json is of format 3, this version reads up to 2"):
        log_of(tmp_path).state()
    path.write_text("{")
    with pytest.raises(LakeRefused, match=r"q-0{20}\.json cannot be read"):
        log_of(tmp_path).state()


def test_fields_of_other_versions_do_no_harm(tmp_path: Path) -> None:
    """An entry with the bare necessities reads, and one with fields that nobody here knows."""
    log = log_of(tmp_path)
    log.folder.mkdir(parents=True)
    bare = {"query": "q", "batch": 0, "add": [{"path": "date=d/a", "date": "d", "rows": 3, "colour": "red"}], "mood": 1}
    (log.folder / entry_name("q", 0)).write_text(json.dumps(bare))
    [found] = log.state().files.values()
    assert (found.path, found.rows, found.schema_version) == ("date=d/a", 3, 0)


def test_a_sweep_takes_old_orphans_own_orphans_and_what_was_replaced(tmp_path: Path) -> None:
    """Young files of others may be about to be committed; replaced ones have readers for a week."""
    clock = Clock()
    table = Table(tmp_path / "t", Disk(), clock_ms=clock)
    folder = table.data / "date=d"
    folder.mkdir(parents=True)
    for name in ("q-live", "q-orphan", "r-young", "r-old", "q-replaced"):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, ns=(clock.ms * 1_000_000,) * 2)
    os.utime(folder / "r-old", ns=((clock.ms - DAY_MS) * 1_000_000,) * 2)
    table.commit(entry("q", 0, file("date=d/q-live"), file("date=d/q-replaced")))
    table.manifest.append(lambda n: Entry("compact", n, clock.ms, (), ("date=d/q-replaced",)), "compact")
    swept = table.sweep(own="q-")
    assert (swept.orphans, swept.removed) == (2, 0)
    assert sorted(os.listdir(folder)) == ["q-live", "q-replaced", "r-young"]
    clock.ms += 7 * DAY_MS
    assert (table.sweep().removed, sorted(os.listdir(folder))) == (1, ["q-live"])


def test_files_are_chosen_by_the_times_of_their_rows(tmp_path: Path) -> None:
    """From is part of it, until is not."""
    table = Table(tmp_path / "t", Disk())
    files = [file(f"date=d/{n}", first_ms=100 * n, last_ms=100 * n + 50) for n in range(3)]
    table.manifest.commit(entry("q", 0, *files))
    for bounds, found in [((None, None), "012"), ((50, None), "012"), ((51, None), "12"), ((None, 100), "0"),
                          ((None, 101), "01"), ((151, 200), ""), ((120, 130), "1")]:  # fmt: skip
        assert "".join(one.path[-1] for one in table.files(*bounds)) == found, bounds


def test_runs_join_what_touches() -> None:
    """Ranges in any order become as few as can be."""
    assert runs([(5, 6), (1, 1), (2, 3), (8, 8)]) == ((1, 3), (5, 6), (8, 8))
    assert within(((2, 2), (6, 6)), ((1, 3), (5, 6))) and not within(((3, 5),), ((1, 3), (5, 6)))
