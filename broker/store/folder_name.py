"""The folder names of vhosts. Pure.

The name of a vhost is any UTF-8. Every byte except letters, digits, - and _ is written as %xx, and the empty name as %.
A name too long for a file system is written as %% and the SHA-256 of its bytes; a file in the folder has the name.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

__all__ = ["folder_name", "is_digest", "vhost_name"]

ESCAPED_MAX: Final = 200  # most file systems take 255 bytes
EMPTY: Final = "%"  # no escape, because two digits follow the % of an escape
DIGEST: Final = "%%"


def folder_name(vhost: str) -> str:
    """Return the folder name of a vhost; it is unique and contains no path."""
    escaped = quote(vhost, safe="").replace(".", "%2E").replace("~", "%7E") or EMPTY
    return escaped if len(escaped) <= ESCAPED_MAX else DIGEST + sha256(vhost.encode()).hexdigest()


def vhost_name(folder: str) -> str | None:
    """Return the vhost of a folder name, None for a digest and for other names."""
    vhost = "" if folder == EMPTY else unquote(folder)
    return vhost if folder_name(vhost) == folder else None


def is_digest(folder: str) -> bool:
    """Return whether a folder name does not contain the vhost's name."""
    return folder.startswith(DIGEST)
