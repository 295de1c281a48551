"""Vhosts added, changed and deleted; who may do what in one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.administration.vhost_changes import PROTECTED, VhostChanges, VhostProtected
from broker.core.queue.default_type import check_default_type
from broker.manage.answers import created, no_content
from broker.manage.api_route import ApiRoute
from broker.manage.body_fields import flag, texts
from broker.manage.needs import Needs
from broker.manage.refusal import HttpRefused, bad_request, not_found
from broker.manage.small_list import small_list
from broker.net.control_request import Request

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["vhost_change_routes"]

VHOST: Final = "/api/vhosts/{vhost}"


def vhost_change_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("PUT", VHOST, Needs.ADMINISTRATOR, put),
        ApiRoute("DELETE", VHOST, Needs.ADMINISTRATOR, delete),
        ApiRoute("POST", f"{VHOST}/start/{{node}}", Needs.ADMINISTRATOR, start),
        ApiRoute("POST", f"{VHOST}/deletion/protection", Needs.ADMINISTRATOR, partial(protect, on=True)),
        ApiRoute("DELETE", f"{VHOST}/deletion/protection", Needs.ADMINISTRATOR, partial(protect, on=False)),
        ApiRoute("GET", f"{VHOST}/permissions", Needs.ADMINISTRATOR, permissions),
        ApiRoute("GET", f"{VHOST}/topic-permissions", Needs.ADMINISTRATOR, topic_permissions),
    ]


async def put(call: Call) -> Response:
    """Add a vhost (201), or change its description, tags, default queue type and tracing (204)."""
    fields, name = await call.fields(), call.words["vhost"]
    facts: dict[str, Any] = {}
    if fields.has("description"):
        facts["description"] = fields.text("description")
    if fields.has("tags"):
        facts["tags"] = texts(fields, "tags")
    default_type = check_default_type(fields.text("default_queue_type", "") or None)
    if default_type is not None:
        facts["default_queue_type"] = default_type
    traces = flag(fields, "tracing")
    is_new = await VhostChanges(call.broker.administration).put(name, facts, call.user.name)
    if fields.has("tracing"):
        await call.broker.verbs["set_tracing"](Request({"vhost": name, "on": traces}))
    return created() if is_new else no_content()


async def delete(call: Call) -> Response:
    """Delete a vhost with its queues, messages, policies and permissions, unless it is protected."""
    if call.words["vhost"] not in call.broker.administration.vhost_names:
        raise not_found()
    try:
        await VhostChanges(call.broker.administration).delete(call.words["vhost"])
    except VhostProtected as protected:
        raise HttpRefused(412, str(protected), "precondition_failed") from None
    return no_content()


async def protect(call: Call, *, on: bool) -> Response:
    """Protect a vhost from being deleted, or end that."""
    facts = {PROTECTED: on}
    await VhostChanges(call.broker.administration).put(call.vhost().name, facts, call.user.name)
    return no_content()


async def start(call: Call) -> Response:
    """Accept that a vhost that runs should run. One that is down starts with the broker, once its files are mended."""
    name = call.words["vhost"]
    if call.broker.administration.vhosts.is_down(name):
        raise bad_request(f"vhost '{name}' is down: {call.broker.administration.vhosts.offline[name].reason}")
    call.vhost()
    return no_content()


async def permissions(call: Call) -> Response:
    """List the permissions in a vhost."""
    return await small_list(call, call.broker.permissions.listing(vhost=call.vhost().name), "user", "vhost")


async def topic_permissions(call: Call) -> Response:
    """List the topic permissions in a vhost."""
    found = call.broker.permissions.topics.listing(vhost=call.vhost().name)
    return await small_list(call, found, "user", "vhost", "exchange")
