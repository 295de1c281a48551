"""The data folder of a start: locked, with its clock and its slot files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker.delivery.clock_watch import ClockWatch
from broker.settings import Settings
from broker.slot_files.slot_folder import SlotFolder
from broker.store.clock_file import ClockFile
from broker.store.data_folder import DataFolder
from broker.store.files import Files

__all__ = ["OpenedData", "open_data"]


class OpenedData(NamedTuple):
    """What a broker has of its data folder before it recovers any vhost."""

    folder: DataFolder
    watch: ClockWatch
    slots: SlotFolder


def open_data(files: Files, path: Path, settings: Settings, clock: Callable[[], float]) -> OpenedData:
    """Lock a data folder, resume its clock and read its slot files. *Blocking.*

    Raises: what DataFolder.open, ClockWatch.resume and SlotFolder.open raise; the folder is not locked then.
    """
    folder = DataFolder.open(files, path, reserve_bytes=settings.store.reserve_bytes)
    try:
        watch = ClockWatch(ClockFile(files, path), clock)
        ahead_ms = watch.resume()
        slots = SlotFolder.open(
            files,
            path / "slots",
            sync=settings.store.sync,
            ahead_ms=ahead_ms,
            incarnation=folder.incarnation,
            expected=folder.has_begun,
            quarantine=settings.store.quarantines,
        )
    except BaseException:
        folder.close()
        raise
    return OpenedData(folder, watch, slots)
