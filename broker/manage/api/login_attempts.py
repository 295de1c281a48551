"""Logins counted by protocol and by network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.manage.answers import json_answer, no_content
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.refusal import not_found

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.core.auth.login_counts import LoginCount
    from broker.manage.call import Call

__all__ = ["login_attempt_routes"]

OF_NODE: Final = "/api/auth/attempts/{node}"


def login_attempt_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", OF_NODE, Needs.MONITORING, attempts),
        ApiRoute("GET", f"{OF_NODE}/source", Needs.MONITORING, attempts_by_source),
        ApiRoute("DELETE", OF_NODE, Needs.ADMINISTRATOR, clear),
        ApiRoute("DELETE", f"{OF_NODE}/source", Needs.ADMINISTRATOR, clear),
    ]


def _check_node(call: Call) -> None:
    if not call.broker.is_named(call.words["node"]):
        raise not_found()


def _row(count: LoginCount) -> dict[str, Any]:
    return {
        "auth_attempts": count.succeeded + count.failed,
        "auth_attempts_failed": count.failed,
        "auth_attempts_succeeded": count.succeeded,
    }


async def attempts(call: Call) -> Response:
    """Show the logins since the start, or since the counts were cleared, by protocol."""
    _check_node(call)
    counts = call.broker.logins.counts.by_protocol
    return json_answer([{"protocol": protocol, **_row(count)} for protocol, count in sorted(counts.items())])


async def attempts_by_source(call: Call) -> Response:
    """Show the logins by network and protocol."""
    _check_node(call)
    rows = [
        {"remote_address": network, "username": "", "protocol": protocol, **_row(count)}
        for (network, protocol), count in call.broker.logins.counts.by_source.items()
    ]
    return json_answer(rows)


async def clear(call: Call) -> Response:
    """Begin to count anew."""
    _check_node(call)
    call.broker.logins.counts.clear()
    return no_content()
