"""Users, their permissions and topic permissions: listed, set and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.core.definitions.export import user_fields
from broker.core.definitions.reading import read_user
from broker.manage.answers import created, json_answer, no_content
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import required, texts
from broker.manage.call import Needs
from broker.manage.listing import small_list
from broker.manage.refusal import bad_request, not_found
from broker.operations.users import delete_users, put_user

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.auth.users import User
    from broker.manage.call import Call

__all__ = ["ROUTES"]

USER: Final = "/api/users/{user}"
OF: Final = "/api/permissions/{vhost}/{user}"
TOPICS_OF: Final = "/api/topic-permissions/{vhost}/{user}"
MISSING: Final = object()  # Go writes a list without tags as null


def _row(call: Call, user: User) -> dict[str, Any]:
    """Return a user as JSON. The plain password of a user of the settings is never shown."""
    return {**user_fields(user.to_json()), "of_settings": call.broker.administration.users.is_configured(user.name)}


def _user(call: Call) -> User:
    """Return the user that the path names. Raises: HttpRefused."""
    found = call.broker.administration.users.get(call.words["user"])
    if found is None:
        raise not_found()
    return found


async def users(call: Call) -> Response:
    """List the users."""
    return await small_list(call, [_row(call, user) for user in call.broker.administration.users.listing()], "name")


async def without_permissions(call: Call) -> Response:
    """List the users who have no access to any vhost. Those of the settings have it to all."""
    users = call.broker.administration.users
    permitted = {row["user"] for row in call.broker.permissions.listing()}
    found = [user for user in users.listing() if not (users.is_configured(user.name) or user.name in permitted)]
    return await small_list(call, [_row(call, user) for user in found], "name")


async def user(call: Call) -> Response:
    """Show a user."""
    return json_answer(_row(call, _user(call)))


async def put(call: Call) -> Response:
    """Add a user (201), or replace tags and password of one (204); without a password nobody logs in with one."""
    fields = await call.fields()
    if fields.value("tags", MISSING) is MISSING:
        raise bad_request("missing: tags")
    row: dict[str, Any] = {"name": call.words["user"], "tags": texts(fields, "tags"), "password_hash": ""}
    for name in ("password", "password_hash", "hashing_algorithm"):
        if fields.has(name):
            row[name] = fields.text(name)
    if row.get("password"):
        del row["password_hash"]
    is_new = await put_user(call.broker.administration, read_user(row))
    return created() if is_new else no_content()


async def delete(call: Call) -> Response:
    """Delete a user; its connections are closed."""
    await call.operate("delete_user", name=_user(call).name)
    return no_content()


async def bulk_delete(call: Call) -> Response:
    """Delete several users, all of them or none."""
    fields = await call.fields()
    if not fields.has("users"):
        raise bad_request("missing: users")
    await delete_users(call.broker.administration, fields.texts("users"))
    return no_content()


async def permissions(call: Call) -> Response:
    """List the permissions of a user."""
    return await small_list(call, call.broker.permissions.listing(user=_user(call).name), "vhost", "user")


async def topic_permissions(call: Call) -> Response:
    """List the topic permissions of a user."""
    found = call.broker.permissions.topics.listing(user=_user(call).name)
    return await small_list(call, found, "vhost", "user", "exchange")


async def all_permissions(call: Call) -> Response:
    """List all permissions."""
    return await small_list(call, call.broker.permissions.listing(), "user", "vhost")


def _found(call: Call) -> list[dict[str, str]]:
    return call.broker.permissions.listing(user=call.words["user"], vhost=call.words["vhost"])


def _topics(call: Call) -> list[dict[str, str]]:
    return call.broker.permissions.topics.listing(user=call.words["user"], vhost=call.words["vhost"])


def _check_ends(call: Call) -> None:
    """Refuse a vhost or a user that does not exist. Raises: HttpRefused, in RabbitMQ's words."""
    administration = call.broker.administration
    if call.words["vhost"] not in administration.vhost_names or call.words["user"] not in administration.users:
        raise bad_request("vhost_or_user_not_found")


async def permissions_in(call: Call) -> Response:
    """Show the permissions of a user in a vhost."""
    found = _found(call)
    if not found:
        raise not_found()
    return json_answer(found[0])


async def set_permissions(call: Call) -> Response:
    """Set the permissions of a user in a vhost: 201 for the first, 204 for others."""
    fields = await call.fields()
    required(fields, "configure", "write", "read")
    _check_ends(call)
    is_new = not _found(call)
    kinds = {name: fields.text(name) for name in ("configure", "write", "read")}
    await call.operate("set_permission", user=call.words["user"], vhost=call.words["vhost"], **kinds)
    return created() if is_new else no_content()


async def clear_permissions(call: Call) -> Response:
    """Remove the permissions of a user in a vhost."""
    if not _found(call):
        raise not_found()
    await call.operate("delete_permission", user=call.words["user"], vhost=call.words["vhost"])
    return no_content()


async def all_topic_permissions(call: Call) -> Response:
    """List all topic permissions."""
    return await small_list(call, call.broker.permissions.topics.listing(), "user", "vhost", "exchange")


async def topic_permissions_in(call: Call) -> Response:
    """List the topic permissions of a user in a vhost."""
    found = _topics(call)
    if not found:
        raise not_found()
    return await small_list(call, found, "exchange")


async def set_topic_permissions(call: Call) -> Response:
    """Limit the routing keys of a user at an exchange: 201 for the first limit in the vhost, 204 for others."""
    fields = await call.fields()
    required(fields, "exchange", "write", "read")
    _check_ends(call)
    is_new = not _topics(call)
    kinds = {name: fields.text(name) for name in ("exchange", "write", "read")}
    await call.operate("set_topic_permission", user=call.words["user"], vhost=call.words["vhost"], **kinds)
    return created() if is_new else no_content()


async def clear_topic_permissions(call: Call) -> Response:
    """Remove the limits of a user's routing keys, at the exchange that the path names or at all."""
    exchange = call.words.get("exchange")
    if not any(exchange in (None, row["exchange"]) for row in _topics(call)):
        raise not_found()
    named = {"user": call.words["user"], "vhost": call.words["vhost"], "exchange": exchange}
    await call.operate("delete_topic_permission", **named)
    return no_content()


ROUTES: Final = (
    ApiRoute("GET", "/api/users", Needs.ADMINISTRATOR, users),
    ApiRoute("GET", "/api/users/without-permissions", Needs.ADMINISTRATOR, without_permissions),
    ApiRoute("POST", "/api/users/bulk-delete", Needs.ADMINISTRATOR, bulk_delete),
    ApiRoute("GET", USER, Needs.ADMINISTRATOR, user),
    ApiRoute("PUT", USER, Needs.ADMINISTRATOR, put),
    ApiRoute("DELETE", USER, Needs.ADMINISTRATOR, delete),
    ApiRoute("GET", f"{USER}/permissions", Needs.ADMINISTRATOR, permissions),
    ApiRoute("GET", f"{USER}/topic-permissions", Needs.ADMINISTRATOR, topic_permissions),
    ApiRoute("GET", "/api/permissions", Needs.ADMINISTRATOR, all_permissions),
    ApiRoute("GET", OF, Needs.ADMINISTRATOR, permissions_in),
    ApiRoute("PUT", OF, Needs.ADMINISTRATOR, set_permissions),
    ApiRoute("DELETE", OF, Needs.ADMINISTRATOR, clear_permissions),
    ApiRoute("GET", "/api/topic-permissions", Needs.ADMINISTRATOR, all_topic_permissions),
    ApiRoute("GET", TOPICS_OF, Needs.ADMINISTRATOR, topic_permissions_in),
    ApiRoute("PUT", TOPICS_OF, Needs.ADMINISTRATOR, set_topic_permissions),
    ApiRoute("DELETE", TOPICS_OF, Needs.ADMINISTRATOR, clear_topic_permissions),
    ApiRoute("DELETE", f"{TOPICS_OF}/{{exchange}}", Needs.ADMINISTRATOR, clear_topic_permissions),
)
