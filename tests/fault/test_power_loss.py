"""Power is lost at any moment: confirmed data is there, whatever else the disk kept."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from broker.store import direct_writer, message_log
from broker.store.damage import StoreFailed
from broker.store.memory_files import MemoryFile
from broker.store.message_log import MessageLog
from tests.fault.faulty_files import SECTOR_BYTES, FaultyFiles, PowerLost, TornContent
from tests.fault.store_model import FOLDER, StoreModel

SEEDS = range(400)
TORTURE_SEEDS = range(10_000, 60_000)
LIVES = 4


def new_model(seed: int, *, sync: bool = True, files: type[FaultyFiles] = FaultyFiles) -> StoreModel:
    """Return a model over an empty folder whose parent is on disk."""
    return StoreModel(files(folder=FOLDER.parent), seed, sync=sync)


def live_and_lose(model: StoreModel, seed: int) -> int:
    """Run a store, let it lose power or be killed, and recover it, several times; return how many bytes were cut.

    The accident may happen in the middle of any file call, including a call of recovery, and a call may fail before
    it.
    """
    random = model.random
    cut_bytes = 0
    model.open()
    for life in range(LIVES):
        files: Any = model.files
        accident = files.calls + random.randint(1, 150)
        kind = random.random()
        if kind < 0.6:
            files.lose_at = accident
        elif kind < 0.8:
            files.fail_at, files.partial = accident, True
        try:
            model.work(random.randint(5, 80))
        except PowerLost:
            pass
        except StoreFailed:
            assert files.failed
        recovering = True
        while recovering:
            files = model.files
            after: Any = files.after_loss(seed * LIVES + life) if random.random() < 0.8 else files.after_kill()
            after.lose_at = random.randint(1, 60) if random.random() < 0.3 else 0
            model.files = after
            try:
                model.open()
                after.lose_at = 0
                cut_bytes += model.recovered.cut_bytes
                model.verify()
                model.adopt()
            except PowerLost:
                continue
            recovering = False
    return cut_bytes


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("fifty", range(len(SEEDS) // 50))
def test_confirmed_is_there_after_any_loss(fifty: int) -> None:
    """Whatever sectors and entries a power loss takes, all confirmed data is recovered, and nothing foreign."""
    for seed in SEEDS[fifty * 50 : fifty * 50 + 50]:
        live_and_lose(new_model(seed), seed)


@pytest.mark.fault
@pytest.mark.interpreted("constants of compiled modules")
def test_a_batch_past_the_page_cache_survives_any_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct writes and the pages at their ends reach the disk in any order, and confirmed data is recovered."""
    monkeypatch.setattr(message_log, "APART_BYTES", 700)
    monkeypatch.setattr(message_log, "LARGE_BYTES", 0)
    monkeypatch.setattr(direct_writer, "DIRECT_MIN_BYTES", 0)
    monkeypatch.setattr(direct_writer, "PAGE_BYTES", SECTOR_BYTES)
    monkeypatch.setattr(direct_writer, "BUFFER_BYTES", 3 * SECTOR_BYTES)
    direct: list[int] = []
    write_pages_at = MemoryFile.write_pages_at

    def write(file: MemoryFile, offset: int, pages: memoryview) -> None:
        assert offset % SECTOR_BYTES == len(pages) % SECTOR_BYTES == 0
        direct.append(offset)
        write_pages_at(file, offset, pages)

    monkeypatch.setattr(MemoryFile, "write_pages_at", write)
    for seed in range(60):
        live_and_lose(new_model(seed), seed)
    assert len(direct) > 500


@pytest.mark.fault
def test_losses_tear_the_tail_sometimes() -> None:
    """The accidents of this test are real: some of them tear the tail of the log."""
    assert any(live_and_lose(new_model(seed), seed) for seed in range(60))


@pytest.mark.fault
def test_without_sync_a_power_loss_loses_confirmed_messages() -> None:
    """With --no-sync the power-loss test fails: it would detect a missing sync."""

    def loses(seed: int) -> bool:
        model = new_model(seed, sync=False)
        model.open()
        model.work(60)
        model.commit()
        model.files = model.files.after_loss(seed)  # type: ignore[attr-defined]
        model.open()
        try:
            model.verify()
        except (AssertionError, StoreFailed):
            return True
        return False

    assert sum(loses(seed) for seed in range(20)) > 10


@pytest.mark.fault
@pytest.mark.parametrize("missing", ["sync_folder", "sync"])
def test_a_forgotten_sync_is_noticed(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that omits the sync of a file or of a folder fails the power-loss test."""
    if missing == "sync_folder":

        def forget(files: FaultyFiles, folder: Path) -> None:
            files.called("sync_folder", folder)

        monkeypatch.setattr(FaultyFiles, "sync_folder", forget)
    else:

        def nothing(content: TornContent) -> None:
            """Leave the bytes where they are."""

        monkeypatch.setattr(TornContent, "sync", nothing)

    def fails(seed: int) -> bool:
        try:
            live_and_lose(new_model(seed), seed)
        except (AssertionError, StoreFailed):
            return True
        return False

    assert any(fails(seed) for seed in range(10))


@pytest.mark.fault
def test_a_transaction_in_pieces_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that writes the members of a group as separate records fails the power-loss test."""
    monkeypatch.setattr(MessageLog, "group", lambda _: nullcontext())

    def fails(seed: int) -> bool:
        try:
            live_and_lose(new_model(seed), seed)
        except AssertionError as error:
            return "recovered in part" in str(error)
        return False

    assert any(fails(seed) for seed in range(200))


@pytest.mark.fault
def test_what_a_failed_sync_left_in_the_page_cache_is_not_recovered() -> None:
    """After a failed sync the page cache shows records that are not on disk: recovery reads the disk instead."""
    model = new_model(1)
    model.open()
    model.declare()
    model.publish()
    model.commit()
    confirmed = model.confirmable
    model.publish()
    batch = model.store.log.take()
    assert batch is not None
    files: Any = model.files
    files.fail_at = files.calls + 2  # the write succeeds, the sync after it does not
    with pytest.raises(StoreFailed):
        model.store.log.write(batch)
    assert files.failed.startswith("sync ")

    model.files = files.after_kill()
    recovered = model.open()
    assert recovered.messages == 1
    model.verify(confirmed)
    model.adopt()
    for seed in range(20):
        model.files = model.files.after_loss(seed)  # type: ignore[attr-defined]
        model.open()
        model.verify()


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_confirmed_is_there_after_fifty_thousand_losses() -> None:
    """Confirmed data survives fifty thousand power losses."""
    for seed in TORTURE_SEEDS:
        live_and_lose(new_model(seed), seed)
