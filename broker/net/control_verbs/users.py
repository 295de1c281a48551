"""Users and their rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.administration.permission_changes import PermissionChanges
from broker.administration.user_changes import UserChanges
from broker.core.auth.user_limits import CHANNELS, CONNECTIONS
from broker.core.limit_table import checked_limits
from broker.net.control_request import ControlRefused, Request, Verb

if TYPE_CHECKING:
    from broker.administration.administration import Administration

__all__ = ["user_verbs"]


def user_verbs(administration: Administration) -> dict[str, Verb]:
    """Return the verbs."""
    users = UserChanges(administration)
    permissions = PermissionChanges(administration)

    def password_of(request: Request) -> str:
        password = request.text("password")
        if not password:
            raise ControlRefused("a password must not be empty")
        return password

    async def add_user(request: Request) -> None:
        await users.add(request.text("name"), password_of(request), request.texts("tags"))

    async def set_user(request: Request) -> None:
        password = None if request.optional("password") is None else password_of(request)
        tags = request.texts("tags") if request.has("tags") else None
        await users.set(request.text("name"), password, tags)

    async def delete_user(request: Request) -> None:
        await users.delete(request.text("name"))

    async def set_user_limits(request: Request) -> None:
        limits = checked_limits(request.table("limits"), (CONNECTIONS, CHANNELS))
        await users.set_limits(request.text("name"), limits)

    async def clear_user_limits(request: Request) -> None:
        await users.clear_limits(request.text("name"))

    async def set_permission(request: Request) -> None:
        kinds = (request.text("configure"), request.text("write"), request.text("read"))
        await permissions.set(request.text("user"), request.text("vhost", "/"), *kinds)

    async def delete_permission(request: Request) -> None:
        await permissions.clear(request.text("user"), request.text("vhost", "/"))

    async def set_topic_permission(request: Request) -> None:
        kinds = (request.text("exchange"), request.text("write"), request.text("read"))
        await permissions.set_topic(request.text("user"), request.text("vhost", "/"), *kinds)

    async def delete_topic_permission(request: Request) -> None:
        exchange = request.optional("exchange")
        await permissions.clear_topic(request.text("user"), request.text("vhost", "/"), exchange)

    return {
        "add_user": add_user,
        "set_user": set_user,
        "delete_user": delete_user,
        "set_user_limits": set_user_limits,
        "clear_user_limits": clear_user_limits,
        "set_permission": set_permission,
        "delete_permission": delete_permission,
        "set_topic_permission": set_topic_permission,
        "delete_topic_permission": delete_topic_permission,
    }
