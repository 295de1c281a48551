"""The names that vhosts have as folders. Pure.

A vhost's name is any UTF-8; every byte of it but letters, digits, - and _ is written as %xx, and the empty name as %.
One that gets too long for a file system is written as %% and the SHA-256 of its bytes; a file in the folder says it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

__all__ = ["folder_name", "is_digest", "vhost_name"]

ESCAPED_MAX: Final = 200  # most file systems take 255 bytes
EMPTY: Final = "%"  # no escape: two digits follow the % of one
DIGEST: Final = "%%"


def folder_name(vhost: str) -> str:
    """Return the name of a vhost's folder; no two vhosts have the same, and none is a path."""
    escaped = quote(vhost, safe="").replace(".", "%2E").replace("~", "%7E") or EMPTY
    return escaped if len(escaped) <= ESCAPED_MAX else DIGEST + sha256(vhost.encode()).hexdigest()


def vhost_name(folder: str) -> str | None:
    """Return the vhost that a folder's name stands for, None when it stands for none or is a digest."""
    vhost = "" if folder == EMPTY else unquote(folder)
    return vhost if folder_name(vhost) == folder else None


def is_digest(folder: str) -> bool:
    """Return whether a folder's name does not say the vhost's."""
    return folder.startswith(DIGEST)
