"""A path on this machine's file systems, as opposed to the URL of an object store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from broker.pipeline.faults import LakeRefused, PipelineFault

__all__ = ["local_path"]

# One slash is enough: `Path("s3://bucket")` is written s3:/bucket. One letter is a drive, as others write paths.
URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(name: str | Path, refused: type[PipelineFault] = LakeRefused) -> Path:
    """Return the path that a text or a file: URL names.

    Raises: `refused` for any other URL, which as a path would be a folder named `s3:` in the current folder.
    """
    text = str(name)
    found = URL.match(text)
    if found is None:
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    raise refused(f"{text} is a URL, and {found[1]}: is not supported: name a folder, such as one where it is mounted")
