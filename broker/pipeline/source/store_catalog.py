"""The slots on a data folder of this machine, or one that is mounted; the broker need not run to read them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from broker.cli.control_client import Unanswered, ask
from broker.cli.parser import BadUsage
from broker.pipeline.faults import SlotMissing, SourceRefused
from broker.pipeline.local_path import local_path
from broker.pipeline.source.seal_reader import SealReader
from broker.pipeline.source.slot_handle import SlotHandle
from broker.slot_files.seal_view import SealView

__all__ = ["StoreCatalog"]


class StoreCatalog:
    """Reads the files, and asks the running broker over its control socket for what only it can do."""

    partial = False  # who may open the folder may read all of it

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Check the arguments. Raises: SourceRefused for a URL."""
        self._folder = local_path(os.fspath(path), SourceRefused).absolute()
        self._slots = self._folder / "slots"
        self._reader = SealReader(self._slots / "seals.log")

    @property
    def address(self) -> str:
        """The data folder."""
        return str(self._folder)

    @property
    def store(self) -> str:
        """The store id."""
        return self.view().store

    def view(self) -> SealView:
        """Return what the seal log says now."""
        return self._reader.view()

    def fetch(self, seal: int) -> Any:
        """Return a sealed slot file, mapped. Raises: SlotMissing."""
        return self._map(self._seal_path(seal), f"slot {seal}")

    def fetch_slot(self, slot: SlotHandle) -> Any:
        """Return a slot file, mapped. Raises: SlotMissing."""
        return self._map(self._path(slot), str(slot))

    def location(self, slot: SlotHandle) -> str:
        """Return the path of a slot file."""
        return str(self._path(slot))

    def snapshot(self, vhost: str, queue: str) -> list[SlotHandle]:
        """Return slots of what a queue holds now."""
        return SlotHandle.of_snapshot(self._ask("snapshot", vhost=vhost, queue=queue), vhost, queue)

    def seal_now(self, vhost: str | None = None, tap: str | None = None) -> int:
        """Has what is open sealed, and returns the last seal."""
        answer = self._ask("seal", vhost=vhost, tap=tap)
        return int(answer["last_seal"])

    def set_cursor(self, name: str, vhost: str, tap: str, seal: int, incarnation: str | None = None) -> None:
        """Say that a reader has passed a seal of a start."""
        self._ask("cursor_set", name=name, vhost=vhost, tap=tap, seal=seal, incarnation=incarnation)

    def taps(self) -> list[dict[str, Any]]:
        """Return the taps and how they are."""
        answer: list[dict[str, Any]] = self._ask("taps")
        return answer

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _ask(self, verb: str, **arguments: Any) -> Any:
        try:
            return ask(self._folder, verb, **arguments)
        except (Unanswered, BadUsage) as error:
            raise SourceRefused(str(error)) from None

    def _seal_path(self, seal: int) -> Path:
        return self._slots / f"{seal:020}.slot"

    def _path(self, slot: SlotHandle) -> Path:
        if slot.snapshot is None:
            return self._seal_path(slot.seal)
        snapshot, number = slot.snapshot
        return self._slots / "snapshots" / snapshot / f"{number}.slot"

    def _map(self, path: Path, slot: str) -> mmap.mmap:
        try:
            with path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise SlotMissing(f"{slot} is gone: there is no {path}") from None
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise SourceRefused(f"{slot} cannot be read: {path}: {error}") from None
