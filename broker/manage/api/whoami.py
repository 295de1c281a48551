"""Who the caller is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.manage.answers import json_answer
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["whoami_routes"]


def whoami_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [ApiRoute("GET", "/api/whoami", Needs.MANAGEMENT, whoami)]


async def whoami(call: Call) -> Response:
    """Answer with the user's name and tags, and whether the settings define it, which no request can change."""
    user = call.user
    configured = call.broker.administration.users.is_configured(user.name)
    return json_answer({"name": user.name, "tags": list(user.tags), "is_internal_user": not configured})
