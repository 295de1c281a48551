"""The store of the definitions: a file of this broker, or a table that the nodes of a cluster share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from broker.core.vhost import Vhost
from broker.store.definitions_file import DefinitionsFile
from broker.store.files import Files

__all__ = ["DefinitionsStore", "LocalDefinitions", "local_definitions"]


class DefinitionsStore(Protocol):
    """The stored definitions, with a version that grows with each change; 0 while none were stored."""

    async def read(self) -> tuple[int, dict[str, Any] | None]:
        """Return the version and the definitions.

        Raises: CorruptFile, NewerFormat, StoreFailed; ValueError when they cannot be reached now.
        """

    async def write(self, definitions: Mapping[str, Any], expected: int) -> int | None:
        """Replace the definitions and return their version; None when the stored ones are not those of `expected`.

        Raises: TypeError or ValueError when nothing was stored, or it is not known; StoreFailed.
        """

    def dropped(self, vhost: Vhost, /) -> None:
        """Note that a vhost is deleted here; it still has its queues."""

    def applied(self, version: int) -> None:
        """Note that this broker follows a version."""

    async def settled(self, version: int) -> None:
        """Return when every broker that shares the definitions follows a version. Raises: ValueError."""

    async def swept(self, vhosts: Iterable[str], /) -> None:
        """Note that every broker has applied changed policies of some vhosts to all queues. Raises: ValueError."""


class LocalDefinitions:
    """The definitions of a standalone broker, in its definitions file."""

    def __init__(self, file: DefinitionsFile) -> None:
        self.file = file

    async def read(self) -> tuple[int, dict[str, Any] | None]:
        """Return 1 and the definitions of the file. *Blocking*, for the start."""
        found = self.file.read()
        return int(found is not None), found

    async def write(self, definitions: Mapping[str, Any], expected: int) -> int:
        """Replace the file."""
        await asyncio.to_thread(self.file.write, definitions)
        return expected + 1

    def dropped(self, vhost: Vhost) -> None:
        """Do nothing: the messages go with the vhost's files."""

    def applied(self, version: int) -> None:
        """Do nothing: no other broker waits for this one."""

    async def settled(self, version: int) -> None:
        """Return at once: there is no other broker."""

    async def swept(self, vhosts: Iterable[str]) -> None:
        """Do nothing: queues look at their rules themselves."""


def local_definitions(files: Files, folder: Path) -> LocalDefinitions:
    """Return the definitions in a data folder."""
    return LocalDefinitions(DefinitionsFile(files, folder))
