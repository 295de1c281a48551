"""Read files in separate threads, so that a slow disk delays only downloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.store.damage import StoreFailed
from broker.store.files import File, Files

THREADS: Final = 2
PIECE_BYTES: Final = 256 << 10


class FileReads:
    """Open and read files in threads. Raises: StoreFailed, which ends only the request."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._threads = ThreadPoolExecutor(THREADS, "http")

    async def open(self, path: Path) -> tuple[File, int] | None:
        """Open a file, and return it with its length, or None if it does not exist."""
        opening = asyncio.get_running_loop().run_in_executor(self._threads, self._open, path)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)  # otherwise the descriptor would leak
            raise

    def _open(self, path: Path) -> tuple[File, int] | None:
        try:
            file = self._files.open(path)
        except StoreFailed:
            if self._files.exists(path):
                raise
            return None
        return file, file.size()

    async def pieces(self, file: File, at: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a part of an open file. Raises: StoreFailed, for example if the file is too short."""
        loop = asyncio.get_running_loop()
        while at < end:
            wanted = min(PIECE_BYTES, end - at)
            reading = loop.run_in_executor(self._threads, file.read_at, at, wanted)
            try:
                piece = await asyncio.shield(reading)
            except asyncio.CancelledError:
                await asyncio.wait([reading])  # before the caller closes the descriptor, whose number may be reused
                raise
            if len(piece) < wanted:
                raise StoreFailed(file.path, "shorter than before")
            yield piece
            at += wanted

    def close(self) -> None:
        """Stop the threads after the current reads."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def _close_unwanted(opening: asyncio.Future[tuple[File, int] | None]) -> None:
    """Close a file that was opened for a client that has disconnected in the meantime."""
    if not opening.cancelled() and opening.exception() is None and (found := opening.result()) is not None:
        found[0].close()
