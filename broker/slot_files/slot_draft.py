"""A slot draft: a slot file that is being written and not read yet."""

from __future__ import annotations

from pathlib import Path

from broker.slot_files.slot_file import SlotMeta
from broker.slot_files.slot_file_writer import SlotFileWriter
from broker.store.files import File, Files

__all__ = ["SlotDraft"]


class SlotDraft:
    """A slot file that is being written. All methods are *blocking*.

    Shapes: rows go to ``writer``, which knows seal, queue and first id. Raises: each method StoreFailed.
    """

    __slots__ = ("_done", "_file", "_files", "path", "writer")

    def __init__(self, files: Files, path: Path, file: File, writer: SlotFileWriter) -> None:
        self.path = path
        self.writer = writer
        self._files = files
        self._file = file
        self._done: tuple[SlotMeta, int, int] | None = None

    @classmethod
    def begin(cls, files: Files, path: Path, meta: SlotMeta) -> SlotDraft:
        """Return a draft without rows; remove a file that has the path."""
        files.remove(path)  # a draft that could not be removed when it was abandoned
        file = files.open(path, create=True)
        return cls(files, path, file, SlotFileWriter(file, meta))

    def complete(self, end: int) -> None:
        """Write index, meta and tail after the rows, unless it was done; otherwise `finish` does it.

        After StoreFailed, as on a full disk, the draft may be abandoned and its messages may be written again.
        """
        if self._done is None:
            self._done = self.writer.finish(end)

    def finish(self, end: int, *, sync: bool) -> tuple[SlotMeta, int, int]:
        """Complete the file and return its meta, length in bytes and checksum; its name is not synced.

        After StoreFailed, which a sync may raise, nothing more may be written.
        """
        self.complete(end)
        assert self._done is not None
        if sync:
            self._file.sync()
        self._file.close()
        return self._done

    def abandon(self) -> None:
        """Remove the file."""
        self._file.close()
        self._files.remove(self.path)
