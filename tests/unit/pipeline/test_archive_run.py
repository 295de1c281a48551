"""An archive without Spark: when it releases slots, where it starts, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.pipeline.faults import JobFailed, LakeRefused, SlotGap, SourceRefused
from broker.pipeline.job import Progress, Summary
from broker.pipeline.jobs import archive as job
from broker.pipeline.lake import archive_run
from broker.pipeline.lake.archive_run import ArchiveRun
from broker.pipeline.lake.lake import Lake
from broker.pipeline.lake.slot_copy import Copied
from broker.pipeline.lake.table import LakeBatch
from broker.pipeline.source.catalog import StoreCatalog
from broker.pipeline.source.seal_stream import SealStream, StreamOffset
from broker.pipeline.source.slot_handle import SlotHandle
from tests.delta_log import messages_of, rows_of
from tests.slot_folders import SlotFolder, numbered


class FolderCatalog(StoreCatalog):
    """The catalog of a folder whose broker runs or is stopped."""

    def __init__(self, folder: SlotFolder) -> None:
        super().__init__(folder.path)
        self._made = folder
        self.runs = True
        self.known: list[tuple[str, str]] = []

    def set_cursor(self, name: str, vhost: str, tap: str, seal: int, incarnation: str) -> None:
        self._check()
        self._made.set_cursor(name, tap, seal, vhost=vhost)

    def remove_cursor(self, name: str, vhost: str, tap: str) -> None:
        self._check()
        self._made.remove_cursor(name, tap, vhost=vhost)

    def seal_now(self, vhost: str | None = None, tap: str | None = None) -> int:
        self._check()
        return self.view().last_seal

    def taps(self) -> list[dict[str, Any]]:
        self._check()
        return [{"vhost": vhost, "name": tap} for vhost, tap in self.known]

    def _check(self) -> None:
        if not self.runs:
            raise SourceRefused("no broker runs there")

    def cursors(self) -> dict[str, int]:
        """Return the cursor's seal of each tap."""
        return {cursor.tap: cursor.seal for cursor in self.view().cursors}


class World:
    """A store and a lake, and Spark's part between them."""

    def __init__(self, path: Path) -> None:
        self.folder = SlotFolder(path / "store")
        self.catalog = FolderCatalog(self.folder)
        self.lake = Lake(path / "lake", create=True)
        self.said: list[str] = []
        self.now_s = 0.0

    def run(self, cursor: str = "archive", **options: Any) -> ArchiveRun:
        """Return an archive as a job makes it."""
        choice = {"max_bad": "0", **options}
        return ArchiveRun(self.lake, self.catalog, cursor, say=self.said.append, clock_s=lambda: self.now_s, **choice)

    def copied(self, run: ArchiveRun, seals: Sequence[int]) -> Copied:
        """Copy slots as the tasks of a batch do."""
        return run.target().copy(
            [SlotHandle.of(self.folder.store, one) for one in self.folder.view.seals if one.seal in seals]
        )

    def batch(self, run: ArchiveRun, seals: Sequence[int]) -> None:
        """Copy and commit a batch."""
        run.commit(self.copied(run, seals), StreamOffset.at(self.folder.view, max(seals), gaps=run.note.start.gaps))

    def archived(self, *batches: Sequence[int], cursor: str = "archive", **options: Any) -> ArchiveRun:
        """Return an archive that committed batches of these seals and died before it released them."""
        run = self.run(cursor, **options)
        run.begin()
        for seals in batches:
            self.batch(run, seals)
        run.end()
        return run


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Provide three slots of one tap."""
    made = World(tmp_path)
    for _ in range(3):
        made.folder.add_slot("audit", numbered(10))
    made.catalog.known = [("/", "audit")]
    return made


def test_a_slot_is_released_when_the_lake_has_its_batch_and_no_sooner(world: World) -> None:
    """A slot is released after the commit of its batch, which has the archive's new position."""
    run = world.run()
    run.begin()
    assert world.catalog.cursors() == {"audit": 0}
    copied = world.copied(run, [1, 2])
    assert (run.release_slots().batches, world.catalog.cursors()) == (0, {"audit": 0})
    run.commit(copied, StreamOffset.at(world.folder.view, 2))
    totals = run.release_slots()
    assert (totals.batches, totals.slots, totals.rows, totals.seal) == (1, 2, 20, 2)
    assert totals.lag is not None
    assert (totals.lag["lag_slots"], totals.lag["lag_messages"]) == (1, 10)
    assert totals.lag["lag_bytes"] > 0
    assert world.catalog.cursors() == {"audit": 2}
    run.end()


def test_what_was_committed_before_a_crash_is_released_at_the_start(world: World) -> None:
    """The last committed batch of a dead run is released at the start and does not count for the new run."""
    world.archived([1, 2, 3])
    again = world.run()
    again.begin()
    assert (world.catalog.cursors(), again.totals.rows, again.totals.seal) == ({"audit": 3}, 0, 3)
    again.end()


def test_a_broker_that_does_not_run_leaves_the_release_for_later(world: World) -> None:
    """A stopped broker is reported once, and the cursor moves when it is back."""
    world.catalog.runs = False
    run = world.run()
    run.begin()
    world.batch(run, [1, 2])
    run.release_slots()
    world.now_s += 1.9
    run.release_slots()
    assert world.catalog.cursors() == {}
    assert world.said == ["the cursor is not moved for now: no broker runs there"]
    world.catalog.runs = True
    run.release_slots()
    assert world.catalog.cursors() == {}
    world.now_s += 0.1
    run.release_slots()
    assert world.catalog.cursors() == {"audit": 2}
    run.end()


def test_a_new_archive_begins_behind_what_the_lake_has(world: World) -> None:
    """A second cursor on the same lake takes no slot again; it takes a tap that the lake lacks from the first slot."""
    run = world.run()
    run.begin()
    assert run.note.start.seal == 0
    world.batch(run, [1, 2])
    run.end()
    world.folder.add_slot("other", numbered(5))
    world.folder.add_slot("audit", numbered(10))
    world.catalog.known.append(("/", "other"))
    fresh = world.run("fresh", taps=["audit"])
    fresh.begin()
    assert fresh.note.start.seal == 2
    fresh.end()
    both = world.run("both")
    both.begin()
    assert both.note.start.seal == 0
    world.batch(both, [1, 2, 3, 4, 5])
    assert both.release_slots().rows == 25
    assert world.lake.archived(world.folder.store) == {("/", "audit"): {"": 5}, ("/", "other"): {"": 4}}
    both.end()


def test_taps_that_are_not_chosen_keep_their_slots(world: World) -> None:
    """The cursor is created for the selected taps only, also by glob."""
    world.catalog.known += [("/", "audit.eu"), ("/", "flights"), ("/v", "audit.us")]
    choices: list[tuple[dict[str, Any], set[str]]] = [
        ({"taps": ["audit*"]}, {"audit", "audit.eu", "audit.us"}),
        ({"vhost": "/v"}, {"audit.us"}),
    ]
    for options, wanted in choices:
        run = world.run(str(sorted(wanted)), **options)
        run.begin()
        made = {cursor.tap for cursor in world.catalog.view().cursors if cursor.name == str(sorted(wanted))}
        assert made == wanted
        run.end()


def test_a_gap_behind_the_archive_is_refused_unless_it_is_allowed(world: World) -> None:
    """A gap after the archived slots is refused, with the number of slots and messages."""
    world.archived([1])
    for seal in world.folder.view.seals[1:]:
        world.folder.add_gap(seal)
    with pytest.raises(
        SlotGap, match=r"^2 slots with 20 messages had disappeared .*: slot 2 of tap 'audit' \(10 messages\)"
    ):
        world.run().begin()


@pytest.mark.parametrize("cursor", [True, False])
@pytest.mark.parametrize(("reason", "seal"), [("bytes", 1), ("age", 1), ("missing", 2), ("damaged", 3)])
def test_a_gap_before_the_first_batch_is_refused_too(world: World, reason: str, seal: int, *, cursor: bool) -> None:
    """Slots that a cap took or that are lost before the first run are gaps, also in the next run; accepted once."""
    if cursor:
        world.folder.set_cursor("archive", "audit", 0)
    gone = world.folder.view.seals[seal - 1]
    world.folder.add_gap(gone, reason) if seal == 1 else world.folder.lose(gone, reason)
    for _ in range(2):
        with pytest.raises(SlotGap, match=rf"^1 slot with 10 messages had disappeared .*: slot {seal} of tap 'audit' "):
            world.run().begin()
    run = world.run()
    run.begin(allow_gap=True)
    assert (run.values()["gaps"], run.values()["gap_messages"]) == (1, 10)
    world.batch(run, [one for one in (1, 2, 3) if one != seal])
    run.end()
    world.run().begin()


def test_slots_that_other_readers_passed_are_no_gap_of_a_new_archive(world: World) -> None:
    """A new archive begins after slots that were removed because their readers had passed them, and says so."""
    world.folder.release(world.folder.view.seals[1])
    world.folder.add_slot("other", numbered(5))
    run = world.run()
    run.begin()
    assert run.values()["gaps"] == 0
    assert world.said == ["tap 'audit' of vhost '/' is archived after seal 2: earlier slots are removed"]
    assert world.catalog.cursors() == {"audit": 2, "other": 0}
    run.end()
    again = world.run()
    again.begin()
    assert again.note.start.seal == 0
    again.end()


def test_a_tap_that_was_added_again_is_archived_after_its_last_removed_slot(world: World) -> None:
    """The queues of a tap that was removed and added again are one sequence of slots, in any order of their lines."""
    old = world.folder.view.seals[1]
    world.folder = SlotFolder(world.folder.path)
    new = world.folder.add_slot("audit", numbered(5), number=9)
    world.folder.release(new)
    world.folder.release(old)
    run = world.run()
    run.begin()
    assert world.catalog.cursors() == {"audit": new.seal}
    run.end()


def test_slots_behind_the_archive_s_own_cursor_are_a_gap(world: World) -> None:
    """Slots that were removed although the archive's cursor had not passed them are a gap without a recorded reason."""
    world.folder.set_cursor("archive", "audit", 1)
    world.folder.release(world.folder.view.seals[1])
    with pytest.raises(SlotGap, match=r"^an unknown number of messages .*: all slots of tap 'audit' up to seal 2;"):
        world.run().begin()


def test_a_gap_that_is_made_while_a_new_archive_starts_is_refused(world: World) -> None:
    """The stream of a new archive accepts the gaps that the archive has checked, and no later one."""
    world.folder.add_gap(world.folder.view.seals[0])
    run = world.run()
    run.begin(allow_gap=True)
    world.folder.add_gap(world.folder.view.seals[0])
    stream = SealStream({"path": str(world.folder.path)})
    with pytest.raises(SlotGap, match="slot 2 of tap 'audit'"):
        stream.latestOffset(run.note.start.to_json(), stream.getDefaultReadLimit())
    run.end()


def test_gaps_may_be_allowed(world: World) -> None:
    """Allowed gaps are counted, and the archive continues; a new archive of a lake with messages counts them too."""
    world.archived([1])
    world.folder.add_gap(world.folder.view.seals[1])
    with pytest.raises(SlotGap):
        world.run("fresh").begin()
    allowed = world.run()
    allowed.begin(allow_gap=True)
    assert allowed.values()["gaps"] == 1
    allowed.end()


def test_two_runs_of_one_archive_are_refused(world: World) -> None:
    """The second run is refused and the first continues; when that has ended, another may run."""
    first, second = world.run(), world.run()
    first.begin()
    with pytest.raises(LakeRefused, match="an archive with the cursor 'archive' already runs on"):
        second.begin()
    first.end()
    second.begin()
    second.end()


def test_an_archive_that_another_one_outran_leaves_no_cursors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two archives begin at once, the second is refused at its commit; a cursor that was there before it stays.

    Its next run is refused before it creates cursors, until it takes over.
    """
    monkeypatch.setattr(job, "open_catalog", lambda *_: world.catalog)
    monkeypatch.setattr(job, "run_tasks", lambda _spark, work, items: [work(item) for item in items])
    world.folder.add_slot("other", numbered(5))
    world.catalog.known.append(("/", "other"))
    world.folder.set_cursor("late", "other", 0)

    def outrun() -> None:
        first = world.run("first")
        first.begin()
        world.batch(first, [1, 2, 3, 4])
        first.release_slots()
        first.end()

    def archive(spark: Any = None, **options: Any) -> Summary:
        of = job.ArchiveOptions(spark=spark, lake=world.lake.place.root, path=str(world.folder.path), cursor="late")
        return job.run_archive(replace(of, **options), Progress("archive", quiet=True))

    def cursors() -> set[tuple[str, str]]:
        return {(cursor.name, cursor.tap) for cursor in world.catalog.view().cursors}

    kept = {("first", "audit"), ("first", "other"), ("late", "other")}
    with pytest.raises(JobFailed, match=r"the lake has tap 'audit' of vhost '/' up to seal 3 already"):
        archive(outrun)
    assert cursors() == kept
    with pytest.raises(JobFailed, match=r"up to seal 3 already, and this archive took it up to seal 0: .* --take-over"):
        archive()
    assert cursors() == kept
    assert archive(lambda: None, take_over=True).values["rows"] == 0
    assert cursors() == {*kept, ("late", "audit")}
    assert len(messages_of(world.lake.place.root)) == 35


def test_the_progress_of_an_archive_counts_its_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots and rows of all batches are shown, each once."""
    monkeypatch.setattr(job, "open_catalog", lambda *_: world.catalog)
    monkeypatch.setattr(job, "run_tasks", lambda _spark, work, items: [work(item) for item in items])
    progress = Progress("archive", quiet=True)
    spark: Any = None
    options = job.ArchiveOptions(lambda: spark, world.lake.place.root, path=str(world.folder.path), batch_bytes=1)
    values = job.run_archive(options, progress).values
    assert (values["batches"], progress.slots, progress.rows) == (3, 3, 30)
    assert values["slot_bytes"] > 0


def test_an_archive_goes_on_beside_taps_that_its_lake_had_from_another(world: World) -> None:
    """Seals of a tap that the lake had when an archive began, or that its own batch wrote, are not another's."""
    world.archived([1, 2, 3], cursor="old", taps=["audit"])
    world.folder.add_slot("other", numbered(5))
    world.catalog.known.append(("/", "other"))
    both = world.run("both")
    both.begin()
    both.end()
    world.archived([4], cursor="both")
    world.run("both").begin()


def test_an_archive_of_another_store_or_choice_is_refused(world: World, tmp_path: Path) -> None:
    """The name of an archive of another store or selection is refused with the reason."""
    run = world.run()
    run.begin()
    run.end()
    with pytest.raises(LakeRefused, match="is of all taps, not of tap audit: another choice of taps"):
        world.run(taps=["audit"]).begin()
    other = World(tmp_path / "other")
    other.folder = SlotFolder(tmp_path / "else", store="e" * 32)
    other.catalog, other.lake = FolderCatalog(other.folder), world.lake
    with pytest.raises(LakeRefused, match=f"of store {world.folder.store}, and .* is store {'e' * 32}"):
        other.run().begin()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "archive.json cannot be read"),
        ("[]", "archive.json cannot be read"),
        ('{"format": 1}', "archive.json cannot be read"),
        ('{"format": 2}', "is of format 2, this version reads up to 1"),
        ('{"format": 1, "query": "q", "vhost": null, "taps": [], "skip": {}, "start": []}', "none of SlotMQ's"),
        ('{"format": 1, "query": "q", "vhost": null, "taps": [], "skip": [], "start": START}', "cannot be read"),
        ('{"format": 1, "query": "q", "vhost": null, "taps": [], "skip": {"/": 3}, "start": START}', "cannot be read"),
        (
            '{"format": 1, "query": "q", "vhost": null, "taps": [], "skip": {"/": {"t": Infinity}}, "start": START}',
            "cannot be read",
        ),
    ],
)
def test_a_note_that_cannot_be_read_is_refused(world: World, text: str, said: str) -> None:
    """The refusal names the file, and nothing is archived twice."""
    start = json.dumps(world.archived([1]).note.start.to_json())
    (world.lake.place.root / "_archives" / "archive.json").write_text(text.replace("START", start))
    with pytest.raises(LakeRefused, match=said):
        world.run().begin()


def test_a_lost_note_costs_nothing(world: World) -> None:
    """The archive starts over after the last seal that the lake has of each tap."""
    world.archived([1, 2])
    (world.lake.place.root / "_archives" / "archive.json").unlink()
    again = world.run()
    again.begin()
    assert again.note.start.seal == 2
    again.end()


def test_a_batch_whose_bad_records_alone_are_in_the_lake_is_repeated(world: World) -> None:
    """The writer died between the commits of its two tables: the same slots follow, and no bad record is doubled."""
    folder = world.folder
    folder.damage(2)
    run = world.run(max_bad="1")
    run.begin()
    batch = LakeBatch(run.note.query, 2, "", world.copied(run, [1, 2]))
    world.lake.note_taps(batch.copied.seals)
    world.lake.bad_table.commit(replace(batch, copied=replace(batch.copied, seals={})), batch.copied.bad_files)
    run.end()
    again = world.run(max_bad="1")
    again.begin()
    stream, target = SealStream({"path": str(folder.path)}), again.target()

    def tasks(work: Any, items: Sequence[Any]) -> list[Copied]:
        return [work(item) for item in items]

    assert again.copy_batch(stream, target, tasks)
    assert (again.totals.seal, again.totals.rows, again.totals.bad) == (2, 19, 1)
    assert again.copy_batch(stream, target, tasks) and not again.copy_batch(stream, target, tasks)
    assert (len(messages_of(world.lake.place.root)), len(rows_of(world.lake.bad_table.folder))) == (29, 1)
    again.end()


def test_what_a_dead_run_left_is_swept_at_the_start(world: World) -> None:
    """The archive's own files without an entry are deleted; files of others and compacted ones are kept."""
    run = world.archived([1], [2])
    folder = world.lake.message_table.folder / "date=2023-11-14"
    replaced = {path.name for path in folder.iterdir()}
    world.lake.compact(1 << 20)
    kept = {path.name for path in folder.iterdir()}
    for name in (f"{run.note.query}-1.parquet", "other-1.parquet"):
        (folder / name).write_bytes(b"x")
    again = world.run()
    again.begin()
    assert {path.name for path in folder.iterdir()} == {"other-1.parquet", *kept} > replaced
    again.end()


@pytest.mark.parametrize("released", [True, False])
def test_a_lake_that_was_put_back_takes_its_batches_again(world: World, tmp_path: Path, *, released: bool) -> None:
    """A restored lake has its position with it: the slots after it are taken again, or are a gap if they are gone."""
    run = world.run()
    run.begin()
    world.batch(run, [1])
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    world.batch(run, [2])
    run.release_slots()
    run.end()
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(tmp_path / "copy", tmp_path / "lake")
    again = world.run()
    if released:
        world.folder.release(world.folder.view.seals[1])
        with pytest.raises(SlotGap, match="all slots of tap 'audit' up to seal 2; --allow-gap"):
            again.begin()
        return
    again.begin()
    world.batch(again, [2, 3])
    again.end()
    assert messages_of(world.lake.place.root) == list(range(1, 31))


def test_a_follower_puts_its_small_files_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower compacts when enough small files exist, those of earlier runs included, and again later."""
    monkeypatch.setattr(archive_run, "COMPACT_FILES", 3)
    for at in range(6):
        run = world.run()
        run.begin()
        world.batch(run, [at + 1])
        run.release_slots()
        run.maintain()
        run.end()
        world.folder.add_slot("audit", numbered(10))
        assert len(world.lake.files()) == (1, 2, 1, 2, 1, 2)[at]
    assert messages_of(world.lake.place.root) == list(range(1, 61))


def test_an_archive_of_all_taps_is_refused_where_some_may_not_be_read(world: World) -> None:
    """Hidden slots would count as archived if the right came later; an archive of named taps has no hidden slots."""
    world.catalog.partial = True
    with pytest.raises(LakeRefused, match="name the taps with --tap"):
        world.run().begin()
    with pytest.raises(LakeRefused, match="may not read every tap"):
        world.run(taps=["a*"]).begin()
    world.run(taps=["audit"]).begin()
