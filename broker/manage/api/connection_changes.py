"""Connections closed on an operator's order, or by the user whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.event_log import get_logger
from broker.manage.answers import no_content
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.refusal import not_authorised, not_found

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response

    from broker.core.session.connection import SessionOfConnection
    from broker.manage.call import Call

__all__ = ["connection_change_routes"]

REASON: Final = "Closed via management plugin"  # RabbitMQ's text
REASON_MAX: Final = 200

_log = get_logger()


def connection_change_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("DELETE", "/api/connections/{connection}", Needs.MANAGEMENT, close),
        ApiRoute("DELETE", "/api/connections/username/{user}", Needs.MANAGEMENT, close_of_user),
    ]


def _close(call: Call, sessions: Iterable[SessionOfConnection]) -> None:
    """Close connections of the caller, or any as an administrator. Raises: HttpRefused, having closed none."""
    sessions = list(sessions)
    own = all(session.user is not None and session.user.name == call.user.name for session in sessions)
    if not own and not call.may(Needs.ADMINISTRATOR):
        raise not_authorised("User not authorised to access object")
    reason = call.request.headers.get("x-reason", REASON)[:REASON_MAX]
    for session in sessions:
        user = None if session.user is None else session.user.name
        session.force_close(reason)
        _log.info("connection.force_closed", conn=session.name, user=user, reason=reason, by=call.user.name)


async def close(call: Call) -> Response:
    """Close a connection; the header X-Reason says why."""
    found = [session for session in call.broker.listener.sessions() if session.name == call.words["connection"]]
    if not found:
        raise not_found()
    _close(call, found)
    return no_content()


async def close_of_user(call: Call) -> Response:
    """Close all connections of a user, who may have none."""
    name = call.words["user"]
    sessions = call.broker.listener.sessions()
    _close(call, [session for session in sessions if session.user is not None and session.user.name == name])
    return no_content()
