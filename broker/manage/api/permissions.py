"""Permissions and topic permissions: listed, set and cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.administration.permission_changes import PermissionChanges
from broker.manage.answers import created, json_answer, no_content
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import required
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request, not_found
from broker.manage.small_list import small_list

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["permission_routes"]

OF: Final = "/api/permissions/{vhost}/{user}"
TOPICS_OF: Final = "/api/topic-permissions/{vhost}/{user}"


def permission_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", "/api/permissions", Needs.ADMINISTRATOR, permissions),
        ApiRoute("GET", OF, Needs.ADMINISTRATOR, permission),
        ApiRoute("PUT", OF, Needs.ADMINISTRATOR, put),
        ApiRoute("DELETE", OF, Needs.ADMINISTRATOR, clear),
        ApiRoute("GET", "/api/topic-permissions", Needs.ADMINISTRATOR, topic_permissions),
        ApiRoute("GET", TOPICS_OF, Needs.ADMINISTRATOR, topic_permissions_of),
        ApiRoute("PUT", TOPICS_OF, Needs.ADMINISTRATOR, put_topic),
        ApiRoute("DELETE", TOPICS_OF, Needs.ADMINISTRATOR, clear_topics),
        ApiRoute("DELETE", f"{TOPICS_OF}/{{exchange}}", Needs.ADMINISTRATOR, clear_topics),
    ]


async def permissions(call: Call) -> Response:
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


async def permission(call: Call) -> Response:
    """Show the permissions of a user in a vhost."""
    found = _found(call)
    if not found:
        raise not_found()
    return json_answer(found[0])


async def put(call: Call) -> Response:
    """Set the permissions of a user in a vhost: 201 for the first, 204 for others."""
    fields = await call.fields()
    required(fields, "configure", "write", "read")
    _check_ends(call)
    is_new = not _found(call)
    kinds = (fields.text("configure"), fields.text("write"), fields.text("read"))
    await PermissionChanges(call.broker.administration).set(call.words["user"], call.words["vhost"], *kinds)
    return created() if is_new else no_content()


async def clear(call: Call) -> Response:
    """Remove the permissions of a user in a vhost."""
    if not _found(call):
        raise not_found()
    await PermissionChanges(call.broker.administration).clear(call.words["user"], call.words["vhost"])
    return no_content()


async def topic_permissions(call: Call) -> Response:
    """List all topic permissions."""
    return await small_list(call, call.broker.permissions.topics.listing(), "user", "vhost", "exchange")


async def topic_permissions_of(call: Call) -> Response:
    """List the topic permissions of a user in a vhost."""
    found = _topics(call)
    if not found:
        raise not_found()
    return await small_list(call, found, "exchange")


async def put_topic(call: Call) -> Response:
    """Limit the routing keys of a user at an exchange: 201 for the first limit in the vhost, 204 for others."""
    fields = await call.fields()
    required(fields, "exchange", "write", "read")
    _check_ends(call)
    is_new = not _topics(call)
    kinds = (fields.text("exchange"), fields.text("write"), fields.text("read"))
    await PermissionChanges(call.broker.administration).set_topic(call.words["user"], call.words["vhost"], *kinds)
    return created() if is_new else no_content()


async def clear_topics(call: Call) -> Response:
    """Remove the limits of a user's routing keys, at the exchange that the path names or at all."""
    exchange = call.words.get("exchange")
    if not any(exchange in (None, row["exchange"]) for row in _topics(call)):
        raise not_found()
    await PermissionChanges(call.broker.administration).clear_topic(call.words["user"], call.words["vhost"], exchange)
    return no_content()
