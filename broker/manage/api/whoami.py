"""Who the caller is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.manage.answers import json_answer
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.auth.users import User
    from broker.manage.call import Call
    from broker.manage.managed_broker import ManagedBroker

__all__ = ["whoami_fields", "whoami_routes"]


def whoami_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [ApiRoute("GET", "/api/whoami", Needs.MANAGEMENT, whoami)]


async def whoami(call: Call) -> Response:
    """Answer with the user's name and tags."""
    return json_answer(whoami_fields(call.broker, call.user))


def whoami_fields(broker: ManagedBroker, user: User) -> dict[str, Any]:
    """Return name and tags of a user, and whether requests can change it: not if the settings define it."""
    configured = broker.administration.users.is_configured(user.name)
    return {"name": user.name, "tags": list(user.tags), "is_internal_user": not configured}
