"""The answer that sends an immutable file: whole, in part, or not at all if the client has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.manage.answers import PieceResponse, Response
from broker.manage.refusal import HttpRefused

if TYPE_CHECKING:
    from broker.manage.file_reads import FileReads

__all__ = ["file_answer"]

ONE_RANGE: Final = re.compile(r"bytes=[ \t]*(\d{0,19})-(\d{0,19})[ \t]*")
BYTES: Final = "application/octet-stream"


async def file_answer(reads: FileReads, path: Path, headers: Mapping[str, str], crc: int) -> Response | None:
    """Return the answer to a GET of a file with that checksum, None when it is not there (any more).

    Raises: HttpRefused (416); StoreFailed.
    """
    etag = f'"{crc:08x}"'
    tags = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, immutable"}
    if is_known(headers, etag):
        return Response(status_code=304, headers=tags, media_type=BYTES)
    found = await reads.open(path)
    if found is None:
        return None
    file, size_bytes = found
    try:
        asked = asked_bytes(headers, size_bytes, etag)
    except BaseException:
        file.close()
        raise
    first, end = asked or (0, size_bytes)
    tags["Content-Length"] = str(end - first)
    if asked is not None:
        tags["Content-Range"] = f"bytes {first}-{end - 1}/{size_bytes}"
    status = 200 if asked is None else 206
    return PieceResponse(reads.pieces(file, first, end), status, tags, BYTES, ended=file.close)


def asked_bytes(headers: Mapping[str, str], size_bytes: int, etag: str) -> tuple[int, int] | None:
    """Return the first requested byte and the one after the last, None for the whole file.

    Several ranges, another unit, and what cannot be read ask for the whole, which RFC 9110 allows.
    Raises: HttpRefused (416) for a range that begins after the end.
    """
    found = ONE_RANGE.fullmatch(headers.get("range", ""))
    if found is None or headers.get("if-range", etag) != etag:
        return None
    first, last = found[1], found[2]
    if not first and not last:
        return None
    if not first:
        begin, end = max(0, size_bytes - int(last)), size_bytes
    else:
        begin, end = int(first), min(size_bytes, int(last) + 1) if last else size_bytes
        if last and int(last) < begin:  # no range at all
            return None
    if begin >= size_bytes:
        unsatisfied = (("Content-Range", f"bytes */{size_bytes}"),)
        raise HttpRefused(416, f"the file has {size_bytes} bytes", headers=unsatisfied)
    return begin, end


def is_known(headers: Mapping[str, str], etag: str) -> bool:
    """Return whether the client has this very content already."""
    tags = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
    return etag in tags or tags == ["*"]
