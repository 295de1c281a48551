"""What names a binding in a path: its routing key, and a digest of its arguments if it has any."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus
from zlib import crc32

from broker.core.definitions.export import json_table

__all__ = ["properties_key"]


def properties_key(key: str, arguments: Mapping[str, Any]) -> str:
    """Return the properties_key of a binding: `~` for one with neither key nor arguments.

    Two bindings of the same ends that differ in their arguments have different keys, but for one pair in four thousand
    million. Source: rabbit_mgmt_format:pack_binding_props, with another digest.
    """
    quoted = quote_plus(key, safe="").replace("~", "%7E")
    if not arguments:
        return quoted or "~"
    written = json.dumps(json_table(arguments), sort_keys=True).encode()
    return f"{quoted}~{urlsafe_b64encode(crc32(written).to_bytes(4)).decode().rstrip('=')}"
