"""Changes of permissions and topic permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.administration.definitions import Draft

__all__ = ["PermissionChanges"]


class PermissionChanges:
    """Sets and clears what users may do in a vhost. Raises: what Administration raises."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def set(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Set the permissions of a user in a vhost."""

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.permissions.set(user, vhost, configure, write, read)

        kinds = {"configure": configure, "write": write, "read": read}
        await self._administration.change(change, "permission.set", user=user, vhost=vhost, **kinds)

    async def clear(self, user: str, vhost: str) -> None:
        """Remove the permissions of a user in a vhost."""

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.permissions.clear(user, vhost)

        await self._administration.change(change, "permission.cleared", user=user, vhost=vhost)

    async def set_topic(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Limit the routing keys of a user at a topic exchange."""

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.permissions.topics.set(user, vhost, exchange, write, read)

        named = {"user": user, "vhost": vhost, "exchange": exchange}
        await self._administration.change(change, "topic_permission.set", **named, write=write, read=read)

    async def clear_topic(self, user: str, vhost: str, exchange: str | None) -> None:
        """Remove the limits of a user's routing keys, at one exchange or at all."""

        def change(draft: Draft) -> None:
            draft.check_vhost(vhost)
            draft.permissions.topics.clear(user, vhost, exchange)

        await self._administration.change(change, "topic_permission.cleared", user=user, vhost=vhost, exchange=exchange)
