"""The login of the web page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.event_log import get_logger
from broker.manage.answers import json_answer, no_content
from broker.manage.api.whoami import whoami_fields
from broker.manage.api_route import ApiRoute
from broker.manage.login import cookie_name, token_of
from broker.manage.needs import Needs, tags_suffice
from broker.manage.origin import check_page
from broker.manage.refusal import not_authorised

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.manage.call import Call

__all__ = ["session_routes"]

LOGIN_MAX_BYTES: Final = 4096  # anybody may send it

_log = get_logger()


def session_routes() -> list[ApiRoute]:
    """Return the routes."""
    return [
        ApiRoute("POST", "/api/session", Needs.NOTHING, begin, ()),
        ApiRoute("DELETE", "/api/session", Needs.NOTHING, end, ()),
    ]


async def begin(call: Call) -> Response:
    """Begin a session of the user whose name and password the body has; the cookie is for the browser only."""
    headers = call.request.headers
    check_page(headers)
    fields = await call.fields(("username", "password"), LOGIN_MAX_BYTES)
    name, password = fields.text("username"), fields.text("password")
    user = await call.login.check(name, password.encode(), headers, call.client)
    if not tags_suffice(user.tags, Needs.MANAGEMENT):
        raise not_authorised("Not management user")
    limit_s = call.broker.settings().http.session_ms // 1000
    cookie = session_cookie(call, call.login.sessions.begin(user), limit_s)
    _log.info("http.session_began", conn=call.client.peer.name, user=user.name)
    return json_answer(whoami_fields(call.broker, user), headers={"Set-Cookie": cookie})


async def end(call: Call) -> Response:
    """End the session of the request, if it has one."""
    check_page(call.request.headers)
    token = token_of(call.request.headers)
    if token is not None:
        call.login.sessions.end(token)
    answer = no_content()
    answer.headers["Set-Cookie"] = session_cookie(call, "", 0)
    return answer


def session_cookie(call: Call, token: str, limit_s: int) -> str:
    """Return the value of Set-Cookie."""
    secure = "; Secure" if call.request.scope["scheme"] == "https" else ""
    name = cookie_name(call.request.headers)
    return f"{name}={token}; Path=/; Max-Age={limit_s}; HttpOnly; SameSite=Strict{secure}"
