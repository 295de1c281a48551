"""Defines the two users that load a broker, each in its own vhost with rights only there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from broker.perf.peer import Address

VHOST, OTHER_VHOST = "bench", "bench-other"
RIGHTS = r"^(bench|slotmq-perf-|amq\.default$)"
"""The names that either user may configure, write and read: those that the load declares, and the default exchange."""

_PASSWORDS = {VHOST: "bench-password", OTHER_VHOST: "other-password"}


def write_definitions(path: Path) -> Path:
    """Write the definitions that a measured broker loads at its start, and return the file.

    A user is named like its vhost. guest is included, because initial definitions with users replace it.
    """
    users = [{"name": name, "password": password, "tags": ""} for name, password in _PASSWORDS.items()]
    rights = [_permission(name, name, RIGHTS) for name in _PASSWORDS]
    document = {
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}, *users],
        "vhosts": [{"name": "/"}, *({"name": name} for name in _PASSWORDS)],
        "permissions": [_permission("guest", "/", ".*"), *rights],
    }
    path.write_text(json.dumps(document, indent=1))
    return path


def tenant(address: Address, vhost: str) -> Address:
    """Return the address of the broker for the user of a vhost."""
    return replace(address, user=vhost, password=_PASSWORDS[vhost], vhost=vhost)


def _permission(user: str, vhost: str, pattern: str) -> dict[str, str]:
    return {"user": user, "vhost": vhost, "configure": pattern, "write": pattern, "read": pattern}
