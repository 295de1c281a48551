"""Probes for a supervisor, without a login: whether the broker lives, and whether it is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker.net.http.answer import Answer, json_answer
from broker.net.http.refusal import bad_request
from broker.net.http.routes import HttpRoute

if TYPE_CHECKING:
    from broker.net.http.request import HttpRequest

__all__ = ["probe_routes"]

UNREADY: Final = ("503", "404")  # HAProxy's disable-on-404 keeps the connections of a server that answers so


def probe_routes(unready: Callable[[], Sequence[str]], down: Callable[[], Sequence[str]]) -> list[HttpRoute]:
    """Return the routes.

    `unready` gives the reasons why the broker cannot take work now, without details that are not for clients without a
    login; `down` names vhosts that are down while the others work.
    """

    def alive(_request: HttpRequest) -> Answer:
        return json_answer({"status": "ok"})

    def ready(request: HttpRequest) -> Answer:
        status = request.query.get("unready", "503")
        if status not in UNREADY:
            raise bad_request(f"unready should be one of {', '.join(UNREADY)}")
        reasons = list(unready())
        if reasons:
            return json_answer({"status": "unready", "reasons": reasons}, int(status))
        vhosts = list(down())
        return json_answer({"status": "ok", "vhosts_down": vhosts} if vhosts else {"status": "ok"})

    return [HttpRoute("GET", "/healthz", probe=alive), HttpRoute("GET", "/readyz", None, ("unready",), ready)]
