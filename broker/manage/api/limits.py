"""Limits of vhosts and of users: listed, set and cleared one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.manage.answers import no_content
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import required
from broker.manage.call import Needs
from broker.manage.listing import small_list
from broker.manage.refusal import bad_request, not_found

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["ROUTES"]

OF_VHOSTS: Final = "/api/vhost-limits"
OF_USERS: Final = "/api/user-limits"


def _of_vhost(call: Call, name: str) -> list[dict[str, Any]]:
    limits = call.broker.administration.vhost_limits(name)
    return [{"vhost": name, "value": limits}] if limits else []


def _of_user(call: Call, name: str) -> list[dict[str, Any]]:
    """Return the row of a user's limits, if there are any and the caller may see them: its own, or all."""
    if not (call.may(Needs.ADMINISTRATOR) or name == call.user.name):
        return []
    user = call.broker.administration.users.get(name)
    limits = {} if user is None else user.limits.to_json()
    return [{"user": name, "value": limits}] if limits else []


async def of_vhosts(call: Call) -> Response:
    """List the vhosts that have limits."""
    names = [name for name in call.broker.administration.vhost_names if call.sees_vhost(name)]
    return await small_list(call, [row for name in names for row in _of_vhost(call, name)], "vhost")


async def of_vhost(call: Call) -> Response:
    """List the limits of a vhost, as one row or none."""
    return await small_list(call, _of_vhost(call, call.vhost().name), "vhost")


async def put_of_vhost(call: Call) -> Response:
    """Set a limit of a vhost."""
    vhost, fields = call.vhost(), await call.fields()
    required(fields, "value")
    await call.operate("set_vhost_limits", name=vhost.name, limits={call.words["limit"]: fields.value("value")})
    return no_content()


async def clear_of_vhost(call: Call) -> Response:
    """Remove a limit of a vhost, which may have none."""
    await call.operate("clear_vhost_limits", name=call.vhost().name, limit=call.words["limit"])
    return no_content()


async def of_users(call: Call) -> Response:
    """List the users who have limits."""
    return await small_list(
        call, [row for name in call.broker.administration.users for row in _of_user(call, name)], "user"
    )


async def of_user(call: Call) -> Response:
    """List the limits of a user, as one row or none."""
    if call.may(Needs.ADMINISTRATOR) and call.words["user"] not in call.broker.administration.users:
        raise not_found()
    return await small_list(call, _of_user(call, call.words["user"]), "user")


async def put_of_user(call: Call) -> Response:
    """Set a limit of a user."""
    fields = await call.fields()
    required(fields, "value")
    limits = {call.words["limit"]: fields.value("value")}
    await call.operate("set_user_limits", name=call.words["user"], limits=limits)
    return no_content()


async def clear_of_user(call: Call) -> Response:
    """Remove a limit of a user, who may have none."""
    if call.words["user"] not in call.broker.administration.users:
        raise bad_request(f"User '{call.words['user']}' does not exist")
    await call.operate("clear_user_limits", name=call.words["user"], limit=call.words["limit"])
    return no_content()


ROUTES: Final = (
    ApiRoute("GET", OF_VHOSTS, Needs.MANAGEMENT, of_vhosts),
    ApiRoute("GET", f"{OF_VHOSTS}/{{vhost}}", Needs.MANAGEMENT, of_vhost),
    ApiRoute("PUT", f"{OF_VHOSTS}/{{vhost}}/{{limit}}", Needs.ADMINISTRATOR, put_of_vhost),
    ApiRoute("DELETE", f"{OF_VHOSTS}/{{vhost}}/{{limit}}", Needs.ADMINISTRATOR, clear_of_vhost),
    ApiRoute("GET", OF_USERS, Needs.MANAGEMENT, of_users),
    ApiRoute("GET", f"{OF_USERS}/{{user}}", Needs.MANAGEMENT, of_user),
    ApiRoute("PUT", f"{OF_USERS}/{{user}}/{{limit}}", Needs.ADMINISTRATOR, put_of_user),
    ApiRoute("DELETE", f"{OF_USERS}/{{user}}/{{limit}}", Needs.ADMINISTRATOR, clear_of_user),
)
