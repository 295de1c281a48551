"""The definitions file: broker-wide definitions, read at startup and replaced as a whole at each change.

first line    slotmq definitions, format 1, crc32c xxxxxxxx
the rest      one JSON object in UTF-8; the checksum is that of its bytes
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from broker.store.damage import CorruptFile, NewerFormat, StoreFailed
from broker.store.files import Files

FORMAT: Final = 1
NAME: Final = "definitions"

_HEAD: Final = re.compile(rb"slotmq definitions, format (\d{1,9})\b(?:, crc32c ([0-9a-f]{8})\n)?")


class DefinitionsFile:
    """The definitions of one folder. Both methods are *blocking*; one thread at a time.

    Invariant: after any crash the file has the content of the last write or of the previous one.
    """

    def __init__(self, files: Files, folder: Path) -> None:
        self.path = folder / NAME
        self._files = files
        self._folder = folder

    def read(self) -> dict[str, Any] | None:
        """Return the definitions, or None if none were written yet.

        Raises: CorruptFile when they are damaged; NewerFormat when a later version wrote them; StoreFailed.
        """
        # After a failed folder sync the file's name may be only in the page cache, so it is synced before it is read.
        self._files.sync_folder(self._folder)
        if not self._files.exists(self.path):
            return None
        block = self._files.read(self.path)
        head = _HEAD.match(block)
        if head is None:
            raise self._damaged("its first line is not that of a definitions file")
        if int(head[1]) > FORMAT:
            raise NewerFormat(self.path, int(head[1]), FORMAT)
        if int(head[1]) < FORMAT or not head[2]:
            raise self._damaged("its first line is damaged")
        begin = head.end()
        content = block[begin:]
        if crc32c(content) != int(head[2], 16):
            raise self._damaged("the checksum is wrong")
        try:
            definitions: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise self._damaged(f"it is not JSON: {error}") from error
        return definitions

    def write(self, definitions: Mapping[str, Any]) -> None:
        """Replace the definitions; when it returns, the new ones are on disk.

        Raises: TypeError or ValueError when a value is not JSON, before anything is changed; StoreFailed, after which
            the next start finds the old definitions or the new ones.
        """
        content = "".join(_lines(definitions)).encode()
        head = b"slotmq definitions, format %d, crc32c %08x\n" % (FORMAT, crc32c(content))
        file = self._files.replace(self.path, [head, content])
        with suppress(StoreFailed):  # the new definitions are already on disk
            file.close()

    def _damaged(self, reason: str) -> CorruptFile:
        advice = 'restore a copy of it, or move it away and start without users: store.on_corruption = "quarantine"'
        return CorruptFile(self.path, f"{reason}; nothing was changed: {advice}")


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _lines(value: Any, depth: int = 2) -> Iterator[str]:
    """Yield the JSON of a document, or of a part of it, with a line for each entry.

    Cost: one call of the encoder per entry. A single call would block all threads, and the encoder's own indenting
    leaves reference cycles.
    """
    if isinstance(value, list) and value:
        yield "["
        yield ",\n".join([_encode(entry) for entry in value])
        yield "]"
    elif isinstance(value, Mapping) and depth:
        for number, (name, part) in enumerate(value.items()):
            yield f",\n{_encode(name)}: " if number else f"{{{_encode(name)}: "
            yield from _lines(part, depth - 1)  # depth: of the argument
        yield "}" if value else "{}"
    else:
        yield _encode(value)
