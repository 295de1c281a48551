"""The first user of a broker that has never had one: RabbitMQ's default_user."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from broker.core.auth.password import RABBIT_SALT_BYTES, SHA256, salted_sha256
from broker.core.auth.permissions import Permissions
from broker.core.auth.users import User, Users, prove
from broker.event_log import get_logger

_log = get_logger()

TAGS: Final = ("administrator",)
ALL: Final = ".*"


def create_first_user(users: Users, permissions: Permissions, name: str, password: str, vhost: str) -> None:
    """Add the first user, with all rights in one vhost, unless there is a user of that name.

    Raises: ValueError for an invalid name. Cost: one argon2 hash, except when the password equals the name: attackers
        try that first, so no hash would protect it.
    """
    if name in users:
        return
    if password == name:
        salt = users.random_bytes(RABBIT_SALT_BYTES)
        users.put(User(name, "", TAGS, salted_sha256(password.encode(), salt), SHA256))
    else:
        users.add(name, password, TAGS)
    permissions.set(name, vhost, ALL, ALL, ALL)


def warn_of_guest(users: Users, loopback_only: Container[str]) -> None:
    """Log a warning if guest may log in from anywhere."""
    if is_guest_open(users, loopback_only):
        _log.warning("guest.open", reason="guest may log in from anywhere; add a user of your own")


def is_guest_open(users: Users, loopback_only: Container[str]) -> bool:
    """Return whether guest is known to have the password guest, and may log in from anywhere."""
    guest = users.get("guest")
    if guest is None or guest.name in loopback_only:
        return False
    return users.knows(guest.name, b"guest") or (guest.hashing_algorithm == SHA256 and prove(guest, b"guest"))
