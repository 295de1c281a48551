"""Limits of vhosts and of users: listed, set and cleared."""

from __future__ import annotations

from typing import Any, Final

from broker.manage.answers import Response
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.listing import small_list
from broker.manage.refusal import not_found


def _of_vhost(call: Call, name: str) -> list[dict[str, Any]]:
    limits = call.broker.administration.vhost_limits(name)
    return [{"vhost": name, "value": limits}] if limits else []


def _of_user(call: Call, name: str) -> list[dict[str, Any]]:
    """Return a list with the row of a user's limits; it is empty if there are none that the caller may see."""
    if not (call.may(Needs.ADMINISTRATOR) or name == call.user.name):
        return []
    user = call.broker.administration.users.get(name)
    limits = {} if user is None else user.limits.to_json()
    return [{"user": name, "value": limits}] if limits else []


async def of_vhosts(call: Call) -> Response:
    """List the limits of the visible vhosts, or of the vhost in the path; vhosts without limits have no row."""
    names = [name for name in call.broker.administration.vhost_names if call.sees_vhost(name)]
    if "vhost" in call.words:
        names = [call.vhost().name]
    return await small_list(call, [row for name in names for row in _of_vhost(call, name)], "vhost")


async def of_users(call: Call) -> Response:
    """List the limits of the visible users, or of the user in the path; users without limits have no row."""
    names = list(call.broker.administration.users)
    if "user" in call.words:
        if call.may(Needs.ADMINISTRATOR) and call.words["user"] not in names:
            raise not_found()
        names = [call.words["user"]]
    return await small_list(call, [row for name in names for row in _of_user(call, name)], "user")


async def put(call: Call) -> None:
    """Set a limit of a vhost or of a user."""
    operation, name = _operation_and_name(call, "set")
    fields = await call.fields(required=("value",))
    await call.operate(operation, name=name, limits={call.words["limit"]: fields.value("value")})


async def clear(call: Call) -> None:
    """Remove a limit of a vhost or of a user, if it is set."""
    operation, name = _operation_and_name(call, "clear")
    await call.operate(operation, name=name, limit=call.words["limit"])


def _operation_and_name(call: Call, verb: str) -> tuple[str, str]:
    """Return the names of the operation and of the vhost or user in the path. Raises: HttpRefused."""
    if "vhost" in call.words:
        return f"{verb}_vhost_limits", call.vhost().name
    return f"{verb}_user_limits", call.words["user"]


ROUTES: Final = tuple(
    ApiRoute(method, path, needs, respond)
    for of, listed in (("vhost", of_vhosts), ("user", of_users))
    for method, path, needs, respond in (
        ("GET", f"/api/{of}-limits", Needs.MANAGEMENT, listed),
        ("GET", f"/api/{of}-limits/{{{of}}}", Needs.MANAGEMENT, listed),
        ("PUT", f"/api/{of}-limits/{{{of}}}/{{limit}}", Needs.ADMINISTRATOR, put),
        ("DELETE", f"/api/{of}-limits/{{{of}}}/{{limit}}", Needs.ADMINISTRATOR, clear),
    )
)
