"""What a user may do over HTTP: read what a queue holds, and look after the broker where a tag says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.resource import Resource
from broker.manage.refusal import HttpRefused
from broker.slot_files.seal_log import TAP_PREFIX

if TYPE_CHECKING:
    from broker.core.auth.permissions import Permissions
    from broker.core.auth.users import User

__all__ = ["HttpRights", "tap_queue"]

OPERATORS: Final = frozenset({"administrator", "monitoring"})


def tap_queue(tap: str) -> str:
    """Return the name of a tap's queue, which rights are about."""
    return TAP_PREFIX + tap


class HttpRights:
    """Answers from the users' tags and from the rights that AMQP clients have as well."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions

    def looks_after(self, user: User) -> bool:
        """Return whether the user may see everything, by the tag administrator or monitoring."""
        return not OPERATORS.isdisjoint(user.tags)

    def may_read(self, user: User, vhost: str, queue: str) -> bool:
        """Return whether the user may read what a queue holds."""
        return self.looks_after(user) or self._permissions.allows(user, Resource("queue", vhost, queue), "read")

    def check_read(self, user: User, vhost: str, queue: str) -> None:
        """Let the user read what a queue holds. Raises: HttpRefused (403) naming it."""
        if not self.may_read(user, vhost, queue):
            raise HttpRefused(403, f"access to {Resource('queue', vhost, queue)} refused for user '{user.name}'")

    def check_looks_after(self, user: User, what: str) -> None:
        """Let the user do what concerns all. Raises: HttpRefused (403)."""
        if not self.looks_after(user):
            raise HttpRefused(
                403, f"access to {what} refused for user '{user.name}', who is neither administrator nor monitoring"
            )
