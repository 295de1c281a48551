"""Routes for users, their permissions and topic permissions."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from broker.core.auth.users import User
from broker.core.definitions.reading import read_user
from broker.manage.answers import Response, created, json_answer, no_content
from broker.manage.api.bindings import DEFAULT_EXCHANGE
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.listing import small_list
from broker.manage.refusal import bad_request, not_found
from broker.operations.rows import user_row
from broker.operations.users import delete_users, put_user

USER: Final = "/api/users/{user}"
TOPICS: Final = "topic-permissions"
MISSING: Final = object()  # differs from null, which Go programs send for an empty list


def _row(call: Call, user: User) -> dict[str, Any]:
    return user_row(call.broker.administration.users, user)


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
    """List the users without access to any vhost. Users who are defined in the settings have access to all vhosts."""
    users = call.broker.administration.users
    permitted = {row["user"] for row in call.broker.permissions.listing()}
    found = [user for user in users.listing() if not (users.is_configured(user.name) or user.name in permitted)]
    return await small_list(call, [_row(call, user) for user in found], "name")


async def user(call: Call) -> Response:
    """Show a user."""
    return json_answer(_row(call, _user(call)))


async def put(call: Call) -> Response:
    """Add a user (201), or replace tags and password (204). Without a password, password logins are refused."""
    fields = await call.fields()
    if fields.value("tags", MISSING) is MISSING:
        raise bad_request("missing: tags")
    row: dict[str, Any] = {"name": call.words["user"], "tags": fields.texts("tags"), "password_hash": ""}
    for name in ("password", "password_hash", "hashing_algorithm"):
        if fields.has(name):
            row[name] = fields.text(name)
    if row.get("password"):
        del row["password_hash"]
    is_new = await put_user(call.broker.administration, read_user(row))
    return created() if is_new else no_content()


async def delete(call: Call) -> None:
    """Delete a user, and close the user's connections."""
    await call.operate("delete_user", name=_user(call).name)


async def bulk_delete(call: Call) -> None:
    """Delete several users, or none if one of them cannot be deleted."""
    fields = await call.fields(required=("users",))
    await delete_users(call.broker.administration, fields.texts("users"))


def _permissions(call: Call, *, topics: bool, **named: str) -> list[dict[str, str]]:
    """Return permissions or topic permissions; `named` can limit them to a user, a vhost or both."""
    permissions = call.broker.permissions
    return permissions.topics.listing(**named) if topics else permissions.listing(**named)


def _found(call: Call, *, topics: bool) -> list[dict[str, str]]:
    return _permissions(call, topics=topics, user=call.words["user"], vhost=call.words["vhost"])


async def list_permissions(call: Call, *, topics: bool) -> Response:
    """List all permissions, or those of the user or vhost in the path."""
    order = ("vhost", "user") if "user" in call.words else ("user", "vhost")
    named = {"user": _user(call).name} if "user" in call.words else {}
    if "vhost" in call.words:
        named["vhost"] = call.vhost().name
    return await small_list(call, _permissions(call, topics=topics, **named), *order, *(["exchange"] if topics else []))


async def show_permissions(call: Call, *, topics: bool) -> Response:
    """Show the permissions of a user in a vhost."""
    found = _found(call, topics=topics)
    if not found:
        raise not_found()
    return await small_list(call, found, "exchange") if topics else json_answer(found[0])


async def set_permissions(call: Call, *, topics: bool) -> Response:
    """Set the permissions of a user in a vhost; answer 201 if there were none, else 204."""
    kinds = ("exchange" if topics else "configure", "write", "read")
    fields, administration = await call.fields(required=kinds), call.broker.administration
    user, vhost = call.words["user"], call.words["vhost"]
    if vhost not in administration.vhost_names or user not in administration.users:
        raise bad_request("vhost_or_user_not_found")  # RabbitMQ's text
    is_new = not _found(call, topics=topics)
    operation = "set_topic_permission" if topics else "set_permission"
    await call.operate(operation, user=user, vhost=vhost, **{name: fields.text(name) for name in kinds})
    return created() if is_new else no_content()


async def clear_permissions(call: Call, *, topics: bool) -> None:
    """Remove the permissions of a user in a vhost, or topic permissions for one exchange or all. `amq.default` is the
    default exchange, unless permissions were set for an exchange of that name.
    """
    named = {name: call.words[name] for name in ("user", "vhost", "exchange") if name in call.words}
    found = _found(call, topics=topics)
    exchanges = {row.get("exchange") for row in found}
    if named.get("exchange") == DEFAULT_EXCHANGE and DEFAULT_EXCHANGE not in exchanges:
        named["exchange"] = ""
    if not found or ("exchange" in named and named["exchange"] not in exchanges):
        raise not_found()
    await call.operate("delete_topic_permission" if topics else "delete_permission", **named)


ROUTES: Final = (
    ApiRoute("GET", "/api/users", Needs.ADMINISTRATOR, users),
    ApiRoute("GET", "/api/users/without-permissions", Needs.ADMINISTRATOR, without_permissions),
    ApiRoute("POST", "/api/users/bulk-delete", Needs.ADMINISTRATOR, bulk_delete),
    ApiRoute("GET", USER, Needs.ADMINISTRATOR, user),
    ApiRoute("PUT", USER, Needs.ADMINISTRATOR, put),
    ApiRoute("DELETE", USER, Needs.ADMINISTRATOR, delete),
    *(
        ApiRoute(method, path, Needs.ADMINISTRATOR, partial(respond, topics=kind == TOPICS))
        for kind in ("permissions", TOPICS)
        for method, path, respond in (
            ("GET", f"/api/{kind}", list_permissions),
            ("GET", f"{USER}/{kind}", list_permissions),
            ("GET", f"/api/vhosts/{{vhost}}/{kind}", list_permissions),
            ("GET", f"/api/{kind}/{{vhost}}/{{user}}", show_permissions),
            ("PUT", f"/api/{kind}/{{vhost}}/{{user}}", set_permissions),
            ("DELETE", f"/api/{kind}/{{vhost}}/{{user}}", clear_permissions),
        )
    ),
    ApiRoute(
        "DELETE",
        f"/api/{TOPICS}/{{vhost}}/{{user}}/{{exchange}}",
        Needs.ADMINISTRATOR,
        partial(clear_permissions, topics=True),
    ),
)
