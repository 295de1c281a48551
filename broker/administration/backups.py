"""Backups: copies of the data folder, taken one at a time while the broker serves clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from broker.administration.administration import Administration
from broker.delivery.engine import Engine
from broker.event_log import get_logger
from broker.store.backup import Backup, BackupStopped
from broker.store.damage import StoreFailed
from broker.store.data_folder import DataFolder, folder_name
from broker.taps.taps import Taps
from broker.tasks import Tasks, uncancelled

_log = get_logger()
PROGRESS_REPEAT_S: Final = 5.0
T = TypeVar("T")


class Backups:
    """The backups of one broker."""

    def __init__(self, folder: DataFolder, administration: Administration, taps: Taps) -> None:
        self._folder = folder
        self._administration = administration
        self._taps = taps
        self._busy = False

    async def take(self, target: Path, report: Callable[[str, int, int], None]) -> dict[str, int]:
        """Copy the data folder to a new or empty folder, and return the numbers of files and bytes.

        The copy contains everything confirmed before the call. `report` is called with each step, the amount done and
        the total. Raises: ValueError if the backup fails; the error that ended the broker, if one did.
        """
        if self._busy:
            raise ValueError("a backup is already running")
        self._busy = True
        backup = Backup(self._folder.files, self._folder.path, target)
        loop = asyncio.get_running_loop()
        progress = ("gathered vhosts", 0, 0)

        def advance(step: str, done: int, total: int) -> None:
            nonlocal progress
            progress = (step, done, total)
            report(*progress)

        def copied(done: int, total: int) -> None:
            loop.call_soon_threadsafe(advance, "copied bytes", done, total)

        async def repeat() -> None:
            """Repeat the last progress, because copying a large file can take longer than the caller's timeout."""
            while True:
                await asyncio.sleep(PROGRESS_REPEAT_S)
                report(*progress)

        repeating = Tasks.logged("backup.progress_failed")
        repeating.start(repeat())
        try:
            await asyncio.to_thread(self._begin, backup, target)
            _log.info("backup.started", target=str(target))
            await uncancelled(self._administration.alone(partial(self._gather, backup, advance)), backup.stop)
            files, size_bytes = await uncancelled(asyncio.to_thread(backup.copy, copied), backup.stop)
        except (StoreFailed, BackupStopped) as error:
            self._raise_failure()
            reason = str(error) or "the broker is stopping"
            _log.error("backup.failed", target=str(target), reason=reason)
            raise ValueError(f"the backup failed: {reason}; the copy in {target} is unfinished") from error
        finally:
            await asyncio.to_thread(_clean, backup)
            repeating.cancel()
            self._busy = False
        _log.info("backup.finished", target=str(target), files=files, bytes=size_bytes)
        return {"files": files, "bytes": size_bytes}

    def _begin(self, backup: Backup, target: Path) -> None:
        """Create the backup.

        Raises: ValueError for a target that is not a new or empty folder outside the data folder; StoreFailed.
        """
        files, folder = self._folder.files, self._folder.path.resolve()
        if target.is_relative_to(folder) or folder.is_relative_to(target):
            raise ValueError(f"{target}: a backup cannot be inside the data folder or contain it")
        if files.exists(target) and not files.is_folder(target):
            raise ValueError(f"{target}: not a folder")
        if files.exists(target) and files.list(target):
            raise ValueError(f"{target}: not empty; a backup needs a folder of its own")
        backup.begin()

    async def _gather(self, backup: Backup, report: Callable[[str, int, int], None]) -> None:
        """Gather the files to copy, while no user, permission or vhost changes: first the logs, then the slot files.

        A message that a tap moves to a slot file in between is copied twice; a start from the backup settles it.
        """
        engines = [self._administration.vhosts.engines[name] for name in sorted(self._administration.vhosts)]
        for done, engine in enumerate(engines):
            await engine.frozen(partial(_gather_store, backup, engine))
            report("gathered vhosts", done + 1, len(engines))
        names = {folder_name(engine.vhost.name) for engine in engines}
        await asyncio.to_thread(backup.gather_others, names)
        await self._taps.frozen(
            lambda view: backup.gather_slots([self._taps.slot_path(seal.seal) for seal in view.seals], view.to_lines())
        )
        await asyncio.to_thread(backup.gather_settings)

    def _raise_failure(self) -> None:
        """Raise the error that ended the broker, if there is one."""
        for engine in self._administration.vhosts.engines.values():
            engine.committer.check()


def _gather_store(backup: Backup, engine: Engine) -> None:
    backup.gather_store(folder_name(engine.vhost.name), dict(engine.store.log.segments))


def _clean(backup: Backup) -> None:
    try:
        backup.clean()
    except StoreFailed as error:
        _log.warning("backup.not_cleaned", reason=str(error))  # the next start removes the files
