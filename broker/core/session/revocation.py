"""Apply changes of users and rights to open connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.core.auth.permissions import Permissions
from broker.core.auth.users import Users
from broker.core.session.connection import SessionOfConnection
from broker.core.vhost import Vhost


class Revocation:
    """Close the connections of users who were deleted or may no longer use the vhost, and cancel consumers whose user
    may no longer read. A changed password does not affect open connections, as in RabbitMQ.
    Shapes: `sessions` returns the sessions of all connections.
    Invariant: when a user's rights in a vhost change, the user's publish cache there is dropped; when a user is
        deleted, the caches in all vhosts are dropped.
    """

    def __init__(
        self,
        users: Users,
        permissions: Permissions,
        sessions: Callable[[], Iterable[SessionOfConnection]],
        vhosts: Mapping[str, Vhost],
    ) -> None:
        self._users = users
        self._permissions = permissions
        self._sessions = sessions
        self._vhosts = vhosts
        users.listeners.append(self._user_changed)
        permissions.listeners.append(self._rights_changed)

    def _user_changed(self, name: str) -> None:
        user = self._users.get(name)
        if user is None:
            for vhost in list(self._vhosts.values()):
                vhost.publish_caches.drop(name)
        for session in self._of(name):
            if user is None:
                session.force_close(f"user '{name}' is deleted")  # RabbitMQ's text
            else:
                session.user_changed(user)

    def _rights_changed(self, name: str, vhost: str) -> None:
        found = self._vhosts.get(vhost)
        if found is not None:
            found.publish_caches.drop(name)
        for session in self._of(name):
            if session.user is None or session.vhost is None or session.vhost is not found:
                continue
            if self._permissions.allows_vhost(session.user, vhost):
                session.cancel_unreadable()
                session.forget_publishes()
            else:
                session.force_close(f"access to vhost '{vhost}' refused for user '{name}'")

    def _of(self, name: str) -> list[SessionOfConnection]:
        return [session for session in self._sessions() if session.user is not None and session.user.name == name]
