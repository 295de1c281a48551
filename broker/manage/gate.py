"""What the HTTP ports answer before the broker serves: that it lives, and that it is not ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.manage.answers import json_answer
from broker.manage.probes import UNREADY
from broker.manage.refusal import HttpRefused
from broker.manage.request_target import query_of
from broker.manage.response import answering, refusal_response

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Gate"]

RECOVERING: Final = "recovering"


class Gate:
    """The application of a port: the broker's own once it serves."""

    def __init__(self, progress: Callable[[], Mapping[str, Any]]) -> None:
        """`progress` tells how far recovery is."""
        self._progress = progress
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        """Let the broker answer from now on."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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
            told = {"status": "unready", "reasons": [RECOVERING], "progress": dict(self._progress())}
            return json_answer(told, int(status) if status in UNREADY else 503)
        return refusal_response(HttpRefused(503, "the broker is recovering its data and does not serve yet"))
