"""Which bytes of a file a request asks for: Range, If-Range and If-None-Match, as far as immutable files need them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from broker.manage.refusal import HttpRefused

__all__ = ["asked_bytes", "is_known"]

ONE_RANGE: Final = re.compile(r"bytes=[ \t]*(\d{0,19})-(\d{0,19})[ \t]*")


def asked_bytes(headers: Mapping[str, str], size_bytes: int, etag: str) -> tuple[int, int] | None:
    """Return the first byte and the one behind the last that is asked for, None for the whole.

    Several ranges, another unit, and what cannot be read ask for the whole, which RFC 9110 allows.
    Raises: HttpRefused (416) for a range that begins behind the end.
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
