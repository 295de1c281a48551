"""Liveness and readiness probes, which need no login and are also answered during the recovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from broker.manage.answers import Response, answering, json_answer, refusal_response
from broker.manage.call import ApiRoute, Call, Needs
from broker.manage.refusal import HttpRefused, bad_request
from broker.manage.request_target import query_of

PROBES: Final = ("/healthz", "/readyz")
UNREADY: Final = ("503", "404")  # with disable-on-404, HAProxy keeps the connections of a server that answers 404
RECOVERING: Final = "recovering"


async def alive(_call: Call) -> Response:
    """Answer the liveness probe."""
    return json_answer({"status": "ok"})


async def ready(call: Call) -> Response:
    """Answer the readiness probe."""
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


ROUTES: Final = (
    ApiRoute("GET", PROBES[0], Needs.NOTHING, alive, ()),
    ApiRoute("GET", PROBES[1], Needs.NOTHING, ready, ("unready",)),
)
"""The probes of a broker after its recovery."""


class Gate:
    """The ASGI application of an HTTP port: answers probes during the recovery, then passes requests on."""

    def __init__(self, progress: Callable[[], Mapping[str, Any]]) -> None:
        """`progress` returns the progress of the recovery."""
        self._progress = progress
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        """Pass all further requests to this application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None:
            await self._app(scope, receive, send)
            return
        async with answering(scope, send) as sending:
            await self._early(scope)(scope, receive, sending)

    def _early(self, scope: Scope) -> Response:
        if scope["path"] == "/healthz":
            return json_answer({"status": "ok"})
        if scope["path"] == "/readyz":
            try:
                status = query_of(scope["query_string"]).get("unready", "503")
            except HttpRefused as refused:
                return refusal_response(refused)
            answer = {"status": "unready", "reasons": [RECOVERING], "progress": dict(self._progress())}
            return json_answer(answer, int(status) if status in UNREADY else 503)
        return refusal_response(HttpRefused(503, "the broker is recovering its data and does not serve yet"))
