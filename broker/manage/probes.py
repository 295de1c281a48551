"""Probes for a supervisor, without a login: whether the broker lives, and whether it is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.manage.answers import json_answer
from broker.manage.api_route import ApiRoute
from broker.manage.needs import Needs
from broker.manage.refusal import bad_request

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["PROBES", "UNREADY", "probe_routes"]

PROBES: Final = ("/healthz", "/readyz")
UNREADY: Final = ("503", "404")  # HAProxy's disable-on-404 keeps the connections of a server that answers so


def probe_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("GET", PROBES[0], Needs.NOTHING, alive, ()),
        ApiRoute("GET", PROBES[1], Needs.NOTHING, ready, ("unready",)),
    ]


async def alive(_call: Call) -> Response:
    """Say that the broker answers."""
    return json_answer({"status": "ok"})


async def ready(call: Call) -> Response:
    """Say whether the broker takes work, without details that are not for clients without a login."""
    status = call.query.get("unready", "503")
    if status not in UNREADY:
        raise bad_request(f"unready should be one of {', '.join(UNREADY)}")
    reasons = list(call.broker.unready())
    if reasons:
        return json_answer({"status": "unready", "reasons": reasons}, int(status))
    answer: dict[str, Any] = {"status": "ok"}
    if vhosts := list(call.broker.down()):
        answer["vhosts_down"] = vhosts
    return json_answer(answer)
