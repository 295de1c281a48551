"""The answer that sends an immutable file: whole, in part, or not at all if the client has it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.net.http.answer import BYTES, Answer, FilePart
from broker.net.http.byte_range import asked_bytes, is_known

if TYPE_CHECKING:
    from broker.net.http.file_reads import FileReads
    from broker.net.http.request import Headers

__all__ = ["file_answer"]


async def file_answer(reads: FileReads, path: Path, headers: Headers, crc: int) -> Answer | None:
    """Return the answer to a GET of a file with that checksum, None when it is not there (any more).

    Raises: HttpRefused (416); StoreFailed.
    """
    etag = f'"{crc:08x}"'
    tags = (BYTES, ("ETag", etag), ("Accept-Ranges", "bytes"), ("Cache-Control", "private, immutable"))
    if is_known(headers, etag):
        return Answer(304, headers=tags)
    found = await reads.open(path)
    if found is None:
        return None
    file, size_bytes = found
    try:
        asked = asked_bytes(headers, size_bytes, etag)
    except BaseException:
        file.close()
        raise
    if asked is None:
        return Answer(200, headers=tags, part=FilePart(file, 0, size_bytes))
    first, end = asked
    shown = ("Content-Range", f"bytes {first}-{end - 1}/{size_bytes}")
    return Answer(206, headers=(*tags, shown), part=FilePart(file, first, end - first))
