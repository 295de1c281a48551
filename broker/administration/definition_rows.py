"""The rows of a definitions document by what identifies them, so that two documents can be compared."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any, Final

__all__ = ["IDENTITIES", "Key", "keying_rows", "same_row"]

# The fields that identify an entry, in a document and in the stored definitions.
IDENTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "users": ("name",),
    "vhosts": ("name",),
    "permissions": ("user", "vhost"),
    "topic_permissions": ("user", "vhost", "exchange"),
    "policies": ("vhost", "name"),
    "parameters": ("vhost", "component", "name"),
    "global_parameters": ("name",),
}
Key = tuple[str, ...]  # the part of the document, then the fields that identify the entry


def keying_rows(document: Mapping[str, Any]) -> Generator[None, None, dict[Key, Any]]:
    """Return the rows of stored definitions by their keys, in steps of one row."""
    rows: dict[Key, Any] = {}
    for part, names in IDENTITIES.items():
        for row in document.get(part, ()):
            rows[part, *(str(row.get(name, "")) for name in names)] = row
            yield
    return rows


def same_row(one: Any, other: Any) -> bool:
    """Return whether two rows are the same in JSON, where 1 is neither true nor 1.0.

    Most rows are written alike, which is cheaper to find out.
    """
    if one != other:
        return False
    return repr(one) == repr(other) or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
